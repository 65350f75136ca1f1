// The threads that compute a step together. They start with the engine and park between steps.
//
// A job is a sequence of phases, and a phase is a number of tasks. A phase is over when its tasks are done, not when
// all threads have arrived. So a thread that the operating system interrupts, as happens beside a busy server, holds up
// the others only while it has a task. When it returns, it skips the phases that were completed without it.
#pragma once

#include <cstdint>

// Plain functions with C linkage, so that files compiled for different instruction sets share no inline code.
struct ThreadPool;
typedef void (*ThreadPoolJob)(void* argument, ThreadPool* thread_pool, int thread, int threads);

extern "C" {
ThreadPool* thread_pool_create(int threads);
void thread_pool_destroy(ThreadPool* thread_pool);
int thread_pool_size(const ThreadPool* thread_pool);
// Runs a job of at most `phases` phases on all threads, the calling one included. Returns when all threads have left
// it. False if memory runs out; then nothing was run.
bool thread_pool_run(ThreadPool* thread_pool, ThreadPoolJob job, void* argument, int phases);
// The next of a phase's `total` tasks for this thread, or -1. A thread first takes the tasks of its own contiguous
// range, then those that are left of others' ranges. Every task is handed out once.
int64_t thread_pool_next_task(ThreadPool* thread_pool, int phase, int thread, int64_t total);
// Reports that `tasks` tasks of the phase, at least one, are done.
void thread_pool_finish_tasks(ThreadPool* thread_pool, int phase, int64_t tasks, int64_t total);
// Returns when all tasks of the phase are done.
void thread_pool_wait(ThreadPool* thread_pool, int phase, int64_t total);
// Nanoseconds of a monotonic clock.
int64_t monotonic_nanoseconds();
}
