#include "team.h"

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <climits>
#include <new>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

namespace {

// Spins before parking: some 20 to 50 microseconds. Longer spins starve whatever else wants the core.
constexpr int SPINS = 1500;
constexpr int64_t LINE = 8;  // counters of a cache line: two that different threads write must not share one

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void park(std::atomic<uint32_t>& word, uint32_t seen) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
    if (word.load(std::memory_order_acquire) == seen) sched_yield();
#endif
}

void wake(std::atomic<uint32_t>& word) {
#if defined(__linux__)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

}  // namespace

struct Team {
    int threads = 1;
    TeamJob job = nullptr;
    void* argument = nullptr;
    bool stopping = false;
    std::vector<pthread_t> workers;
    std::atomic<int64_t>* counters = nullptr;  // [phases, 1 + threads, LINE]: tasks done, then taken of each thread's own
    int64_t stride = 0, phases = 0;
    alignas(64) std::atomic<uint32_t> generation{0};  // of jobs: workers wait for the next
    alignas(64) std::atomic<uint32_t> progress{0};    // rises whenever a phase is over or a thread leaves the job
    std::atomic<int> parked{0};                       // threads that may sleep on one of these
    alignas(64) std::atomic<int> inside{0};           // workers that have not left the job

    ~Team() { release(); }

    void release() { ::operator delete[](counters, std::align_val_t(64)); }

    std::atomic<int64_t>* phase(int64_t number) { return counters + number * stride; }

    // Waits until `over` holds, looking again whenever the word changes. Sequentially consistent where it parks, so
    // that whoever changes the word after a thread announced that it parks sees the announcement.
    template <typename Condition>
    void await(std::atomic<uint32_t>& word, Condition over) {
        for (int i = 0; i < SPINS; ++i) {
            if (over()) return;
            relax();
        }
        parked.fetch_add(1);
        for (;;) {
            const uint32_t seen = word.load();
            if (over()) break;
            park(word, seen);
        }
        parked.fetch_sub(1);
    }

    void advance(std::atomic<uint32_t>& word) {
        word.fetch_add(1);
        if (parked.load() > 0) wake(word);
    }
};

namespace {

struct Start {
    Team* team;
    int thread;
};

void* work(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    delete static_cast<Start*>(argument);
    Team& team = *start.team;
    uint32_t seen = 0;
    for (;;) {
        team.await(team.generation, [&] { return team.generation.load(std::memory_order_acquire) != seen; });
        ++seen;
        if (team.stopping) return nullptr;
        team.job(team.argument, &team, start.thread, team.threads);
        if (team.inside.fetch_sub(1, std::memory_order_acq_rel) == 1) team.advance(team.progress);
    }
}

}  // namespace

extern "C" {

Team* team_create(int threads) {
    Team* team = new (std::nothrow) Team;
    if (team == nullptr) return nullptr;
    for (int thread = 1; thread < threads; ++thread) {
        pthread_t worker;
        Start* start = new (std::nothrow) Start{team, thread};
        // Fewer threads than asked still compute.
        if (start == nullptr || pthread_create(&worker, nullptr, work, start) != 0) {
            delete start;
            break;
        }
        team->workers.push_back(worker);
        ++team->threads;
    }
    return team;
}

void team_destroy(Team* team) {
    team->stopping = true;
    team->advance(team->generation);
    for (pthread_t worker : team->workers) pthread_join(worker, nullptr);
    delete team;
}

int team_size(const Team* team) { return team->threads; }

bool team_run(Team* team, TeamJob job, void* argument, int phases) {
    // Here no other thread is inside a job.
    if (phases > team->phases) {
        const int64_t stride = (1 + team->threads) * LINE;
        auto* counters = new (std::align_val_t(64), std::nothrow) std::atomic<int64_t>[phases * stride];
        if (counters == nullptr) return false;
        team->release();
        team->counters = counters;
        team->stride = stride;
        team->phases = phases;
    }
    for (int64_t i = 0; i < phases * team->stride; i += LINE) team->counters[i].store(0, std::memory_order_relaxed);
    team->job = job;
    team->argument = argument;
    team->inside.store(team->threads - 1, std::memory_order_relaxed);
    team->advance(team->generation);
    job(argument, team, 0, team->threads);
    team->await(team->progress, [&] { return team->inside.load(std::memory_order_acquire) == 0; });
    return true;
}

int64_t team_next(Team* team, int phase, int thread, int64_t total) {
    std::atomic<int64_t>* counters = team->phase(phase);
    for (int i = 0; i < team->threads; ++i) {
        const int owner = thread + i < team->threads ? thread + i : thread + i - team->threads;
        const int64_t first = owner * total / team->threads, last = (owner + 1) * total / team->threads;
        std::atomic<int64_t>& taken = counters[(1 + owner) * LINE];
        if (first + taken.load(std::memory_order_relaxed) >= last) continue;
        const int64_t task = first + taken.fetch_add(1, std::memory_order_relaxed);
        if (task < last) return task;
    }
    return -1;
}

void team_done(Team* team, int phase, int64_t tasks, int64_t total) {
    if (team->phase(phase)->fetch_add(tasks, std::memory_order_acq_rel) + tasks == total) team->advance(team->progress);
}

void team_wait(Team* team, int phase, int64_t total) {
    std::atomic<int64_t>* done = team->phase(phase);
    if (done->load(std::memory_order_acquire) >= total) return;
    team->await(team->progress, [&] { return done->load() >= total; });
}

int64_t team_clock() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
}
