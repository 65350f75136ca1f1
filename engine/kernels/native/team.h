// The threads that compute a step together: they start with the engine, meet at barriers, and park between steps.
#pragma once

#include <cstdint>

// Plain functions with C linkage, so that files compiled for different instruction sets share no inline code.
struct Team;
typedef void (*TeamJob)(void* argument, Team* team, int thread, int threads);

extern "C" {
Team* team_create(int threads);
void team_destroy(Team* team);
int team_size(const Team* team);
// Runs the job on all threads, this one included, and returns when all are done.
void team_run(Team* team, TeamJob job, void* argument);
// All threads of the job wait for each other; tasks are given out anew.
void team_barrier(Team* team);
// The next of `total` tasks for this thread, or -1: first those of its own run of neighbours, then what others have
// left. Every task is given out once.
int64_t team_next(Team* team, int thread, int64_t total);
}
