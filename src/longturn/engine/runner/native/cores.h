/* Threads on cores of their own, where there are as many of both. */
#pragma once

#include <sched.h>

/* Where the calling thread may run. */
struct cores { cpu_set_t all; int enough; };

struct cores find_cores(int threads);
/* For each thread of a parallel region, by its number. The first is the caller, who is to leave it afterwards: whatever
 * threads it starts would be bound to its core as well. */
void hold_core(const struct cores *cores, int thread);
void leave_core(const struct cores *cores);
