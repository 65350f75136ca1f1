#include "team.h"

#include <pthread.h>

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
    alignas(64) std::atomic<uint32_t> generation{0};  // of jobs: workers wait for the next
    alignas(64) std::atomic<uint32_t> phase{0};       // of barriers
    std::atomic<int> parked{0};                       // threads that may sleep on generation or phase
    alignas(64) std::atomic<int> arrived{0};
    struct alignas(64) Taken {
        std::atomic<int64_t> count{0};
    };
    Taken* taken = nullptr;  // by thread: how many tasks of its run are given out

    ~Team() { delete[] taken; }

    void give_out_anew() {
        for (int thread = 0; thread < threads; ++thread) taken[thread].count.store(0, std::memory_order_relaxed);
    }

    // Waits until the word is no longer what was seen. Sequentially consistent, so that whoever changes the word
    // after a thread announced that it parks sees the announcement.
    void await(std::atomic<uint32_t>& word, uint32_t seen) {
        for (int i = 0; i < SPINS; ++i) {
            if (word.load(std::memory_order_acquire) != seen) return;
            relax();
        }
        parked.fetch_add(1);
        while (word.load() == seen) park(word, seen);
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
        team.await(team.generation, seen);
        ++seen;
        if (team.stopping) return nullptr;
        team.job(team.argument, &team, start.thread, team.threads);
        team_barrier(&team);
    }
}

}  // namespace

extern "C" {

Team* team_create(int threads) {
    Team* team = new (std::nothrow) Team;
    if (team == nullptr) return nullptr;
    team->taken = new (std::nothrow) Team::Taken[threads];
    if (team->taken == nullptr) {
        delete team;
        return nullptr;
    }
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

void team_run(Team* team, TeamJob job, void* argument) {
    team->job = job;
    team->argument = argument;
    team->give_out_anew();
    team->advance(team->generation);
    job(argument, team, 0, team->threads);
    team_barrier(team);
}

void team_barrier(Team* team) {
    if (team->threads == 1) {
        team->give_out_anew();
        return;
    }
    const uint32_t seen = team->phase.load(std::memory_order_acquire);
    if (team->arrived.fetch_add(1, std::memory_order_acq_rel) == team->threads - 1) {
        team->arrived.store(0, std::memory_order_relaxed);
        team->give_out_anew();
        team->advance(team->phase);
    } else {
        team->await(team->phase, seen);
    }
}

int64_t team_next(Team* team, int thread, int64_t total) {
    for (int i = 0; i < team->threads; ++i) {
        const int owner = thread + i < team->threads ? thread + i : thread + i - team->threads;
        const int64_t first = owner * total / team->threads, last = (owner + 1) * total / team->threads;
        if (first + team->taken[owner].count.load(std::memory_order_relaxed) >= last) continue;
        const int64_t task = first + team->taken[owner].count.fetch_add(1, std::memory_order_relaxed);
        if (task < last) return task;
    }
    return -1;
}
}
