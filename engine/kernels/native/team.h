// The threads that compute a step together: they start with the engine, and park between steps.
//
// A step is a sequence of phases, each of them a number of tasks. A phase is over when its tasks are done, not when all
// threads have arrived: a thread that the machine took away for a moment, as happens beside a busy server, holds up
// nobody unless it holds a task, and skips what was done without it when it returns.
#pragma once

#include <cstdint>

// Plain functions with C linkage, so that files compiled for different instruction sets share no inline code.
struct Team;
typedef void (*TeamJob)(void* argument, Team* team, int thread, int threads);

extern "C" {
Team* team_create(int threads);
void team_destroy(Team* team);
int team_size(const Team* team);
// Runs a job of at most `phases` phases on all threads, this one included; returns when all have left it. False when
// memory is short: nothing was run.
bool team_run(Team* team, TeamJob job, void* argument, int phases);
// The next of a phase's `total` tasks for this thread, or -1: first those of its own run of neighbours, then what
// others have left. Every task is given out once.
int64_t team_next(Team* team, int phase, int thread, int64_t total);
// So many tasks of the phase, at least one, are done.
void team_done(Team* team, int phase, int64_t tasks, int64_t total);
// Returns when all tasks of the phase are done.
void team_wait(Team* team, int phase, int64_t total);
// Nanoseconds of a clock that only goes forward.
int64_t team_clock();
}
