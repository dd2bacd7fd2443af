/* A core for every thread. Left to the system, two of them share one now and then for as long as a step takes, because
 * a server's or a client's thread was on the other just when they were woken: a step takes twice as long then (of 700
 * with four streams 5%, measured on two cores).
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "cores.h"

static __thread int held; /* this thread computes for nobody else, and stays where it is */

struct cores find_cores(int threads) {
    struct cores cores;
    int found = pthread_getaffinity_np(pthread_self(), sizeof cores.all, &cores.all) == 0;
    cores.enough = found && CPU_COUNT(&cores.all) == threads;
    return cores;
}

static void go_to(const cpu_set_t *where) { pthread_setaffinity_np(pthread_self(), sizeof *where, where); }

void hold_core(const struct cores *cores, int thread) {
    if (!cores->enough || held) return;
    int cpu = -1;
    for (int passed = -1; passed < thread; passed += CPU_ISSET(cpu, &cores->all) != 0) cpu++;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    go_to(&one);
    held = thread > 0;
}

void leave_core(const struct cores *cores) {
    if (cores->enough) go_to(&cores->all);
}
