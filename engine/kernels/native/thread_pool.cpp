#include "thread_pool.h"

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

// Iterations before a waiting thread parks: some 20 to 50 microseconds. Longer spinning starves other threads.
constexpr int SPINS = 1500;
constexpr int64_t LINE = 8;  // counters per cache line: two counters that different threads write must not share one

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

struct ThreadPool {
    int threads = 1;
    ThreadPoolJob job = nullptr;
    void* argument = nullptr;
    bool stopping = false;
    std::vector<pthread_t> workers;
    std::atomic<int64_t>* counters =
        nullptr;  // [phases, 1 + threads, LINE]: tasks done, then tasks taken from each thread's range
    int64_t stride = 0, phases = 0;
    alignas(64) std::atomic<uint32_t> generation{0};  // number of jobs: workers wait for the next one
    alignas(64) std::atomic<uint32_t> progress{
        0};                                  // rises when a phase is over and when the last worker leaves the job
    std::atomic<int> parked{0};              // threads that may sleep on one of these two
    alignas(64) std::atomic<int> inside{0};  // workers that have not left the job

    ~ThreadPool() { release(); }

    void release() { ::operator delete[](counters, std::align_val_t(64)); }

    std::atomic<int64_t>* phase(int64_t number) { return counters + number * stride; }

    // Waits until `over` holds, and checks again whenever the word changes. Parking is sequentially consistent, so that
    // a thread that changes the word after another one has announced that it parks sees the announcement.
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
    ThreadPool* thread_pool;
    int thread;
};

void* work(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    delete static_cast<Start*>(argument);
    ThreadPool& thread_pool = *start.thread_pool;
    uint32_t seen = 0;
    for (;;) {
        thread_pool.await(thread_pool.generation,
                          [&] { return thread_pool.generation.load(std::memory_order_acquire) != seen; });
        ++seen;
        if (thread_pool.stopping) return nullptr;
        thread_pool.job(thread_pool.argument, &thread_pool, start.thread, thread_pool.threads);
        if (thread_pool.inside.fetch_sub(1, std::memory_order_acq_rel) == 1) thread_pool.advance(thread_pool.progress);
    }
}

}  // namespace

extern "C" {

ThreadPool* thread_pool_create(int threads) {
    ThreadPool* thread_pool = new (std::nothrow) ThreadPool;
    if (thread_pool == nullptr) return nullptr;
    for (int thread = 1; thread < threads; ++thread) {
        pthread_t worker;
        Start* start = new (std::nothrow) Start{thread_pool, thread};
        // Fewer threads than requested can still compute.
        if (start == nullptr || pthread_create(&worker, nullptr, work, start) != 0) {
            delete start;
            break;
        }
        thread_pool->workers.push_back(worker);
        ++thread_pool->threads;
    }
    return thread_pool;
}

void thread_pool_destroy(ThreadPool* thread_pool) {
    thread_pool->stopping = true;
    thread_pool->advance(thread_pool->generation);
    for (pthread_t worker : thread_pool->workers) pthread_join(worker, nullptr);
    delete thread_pool;
}

int thread_pool_size(const ThreadPool* thread_pool) { return thread_pool->threads; }

bool thread_pool_run(ThreadPool* thread_pool, ThreadPoolJob job, void* argument, int phases) {
    // No other thread is inside a job here.
    if (phases > thread_pool->phases) {
        const int64_t stride = (1 + thread_pool->threads) * LINE;
        auto* counters = new (std::align_val_t(64), std::nothrow) std::atomic<int64_t>[phases * stride];
        if (counters == nullptr) return false;
        thread_pool->release();
        thread_pool->counters = counters;
        thread_pool->stride = stride;
        thread_pool->phases = phases;
    }
    for (int64_t i = 0; i < phases * thread_pool->stride; i += LINE)
        thread_pool->counters[i].store(0, std::memory_order_relaxed);
    thread_pool->job = job;
    thread_pool->argument = argument;
    thread_pool->inside.store(thread_pool->threads - 1, std::memory_order_relaxed);
    thread_pool->advance(thread_pool->generation);
    job(argument, thread_pool, 0, thread_pool->threads);
    thread_pool->await(thread_pool->progress, [&] { return thread_pool->inside.load(std::memory_order_acquire) == 0; });
    return true;
}

int64_t thread_pool_next_task(ThreadPool* thread_pool, int phase, int thread, int64_t total) {
    std::atomic<int64_t>* counters = thread_pool->phase(phase);
    for (int i = 0; i < thread_pool->threads; ++i) {
        const int owner = thread + i < thread_pool->threads ? thread + i : thread + i - thread_pool->threads;
        const int64_t first = owner * total / thread_pool->threads, last = (owner + 1) * total / thread_pool->threads;
        std::atomic<int64_t>& taken = counters[(1 + owner) * LINE];
        if (first + taken.load(std::memory_order_relaxed) >= last) continue;
        const int64_t task = first + taken.fetch_add(1, std::memory_order_relaxed);
        if (task < last) return task;
    }
    return -1;
}

void thread_pool_finish_tasks(ThreadPool* thread_pool, int phase, int64_t tasks, int64_t total) {
    if (thread_pool->phase(phase)->fetch_add(tasks, std::memory_order_acq_rel) + tasks == total)
        thread_pool->advance(thread_pool->progress);
}

void thread_pool_wait(ThreadPool* thread_pool, int phase, int64_t total) {
    std::atomic<int64_t>* done = thread_pool->phase(phase);
    if (done->load(std::memory_order_acquire) >= total) return;
    thread_pool->await(thread_pool->progress, [&] { return done->load() >= total; });
}

int64_t monotonic_nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
}
