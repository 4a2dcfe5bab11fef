// A team of threads for jobs of some ten microseconds: a product of a decode, its attention.
//
//     the caller   publishes a job | takes parts until none is left | waits for the parts that helpers have taken
//     a helper     looks for a job, SPINS times, then sleeps | takes parts until none is left
//
// A helper that still sleeps or is preempted has taken no part, so the caller never waits for it: it computes those
// parts itself. Waiting is bounded: whoever waits looks SPINS times (some 30 us) and then sleeps, so that other workers
// on the same cores go on. One caller has the helpers at a time; another one meanwhile works alone. In a forked child,
// which has no helpers, the caller takes every part.
#define _GNU_SOURCE
#include "cpu_team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST_HELPERS 255
#define SPINS 1000
#define INDEX_BITS 32

static struct {
    // The job. Written by the caller before it is published, and only when all parts of the last one are done.
    _Atomic(void (*)(const void *, int64_t)) part;
    _Atomic(const void *) work;
    _Atomic int64_t parts;
    _Atomic int helpers;  // that may take parts
    _Alignas(64) _Atomic uint64_t next;  // the job's number << INDEX_BITS | the first part that nobody has taken
    _Alignas(64) _Atomic uint32_t done;  // parts
    _Alignas(64) _Atomic uint32_t number;  // of the job; helpers sleep on it
    _Atomic int sleeping;  // helpers
    _Atomic int waits;     // the caller sleeps on `done`
    _Atomic int64_t waited_ns, slept_ns;  // see team_waited
    atomic_flag taken;     // a caller has the helpers
    int started;           // helpers; only that caller reads it
} team = {.taken = ATOMIC_FLAG_INIT};

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void sleep_while(_Atomic uint32_t *at, uint32_t value) {
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, value, 0, 0, 0);
}

static void wake(_Atomic uint32_t *at, int sleepers) { syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, sleepers, 0, 0, 0); }

// Takes and computes parts of the job `number` until none is left.
static void take_parts(uint32_t number) {
    void (*part)(const void *, int64_t) = atomic_load(&team.part);
    const void *work = atomic_load(&team.work);
    const int64_t parts = atomic_load(&team.parts);
    uint64_t next = atomic_load(&team.next);
    // If the job is over, `part` may be of a later one: then the exchange fails.
    while ((uint32_t)(next >> INDEX_BITS) == number && (int64_t)(uint32_t)next < parts) {
        if (!atomic_compare_exchange_weak(&team.next, &next, next + 1)) continue;
        part(work, (int64_t)(uint32_t)next);
        if (atomic_fetch_add(&team.done, 1) + 1 == parts && atomic_load(&team.waits)) wake(&team.done, 1);
        next = atomic_load(&team.next);
    }
}

static void *help(void *rank) {
    uint32_t last = 0;
    for (;;) {
        uint32_t number = atomic_load(&team.number);
        for (int spin = 0; number == last && spin < SPINS; spin++) {
            relax();
            number = atomic_load(&team.number);
        }
        if (number == last) {
            atomic_fetch_add(&team.sleeping, 1);
            sleep_while(&team.number, last);
            atomic_fetch_sub(&team.sleeping, 1);
            continue;
        }
        last = number;
        if ((intptr_t)rank < atomic_load(&team.helpers)) take_parts(number);
    }
    return 0;
}

static void start_helpers(int wanted) {
    while (team.started < wanted && team.started < MOST_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, 0, help, (void *)(intptr_t)team.started) != 0) return;  // fewer do as well
        pthread_detach(thread);
        team.started++;
    }
}

// Waits until all parts are done.
static void wait_for(int64_t parts) {
    const int64_t start = now_ns();
    uint32_t done = atomic_load(&team.done);
    for (int spin = 0; done < parts && spin < SPINS; spin++) {
        relax();
        done = atomic_load(&team.done);
    }
    if (done < parts) {
        const int64_t began = now_ns();
        atomic_store(&team.waits, 1);
        while ((done = atomic_load(&team.done)) < parts) sleep_while(&team.done, done);
        atomic_store(&team.waits, 0);
        atomic_fetch_add(&team.slept_ns, now_ns() - began);
    }
    atomic_fetch_add(&team.waited_ns, now_ns() - start);
}

void team_run(void (*part)(const void *work, int64_t index), const void *work, int64_t parts, int threads) {
    if (threads < 2 || parts < 2 || atomic_flag_test_and_set(&team.taken)) {
        for (int64_t index = 0; index < parts; index++) part(work, index);
        return;
    }

    start_helpers(threads - 1);
    const uint32_t number = atomic_load(&team.number) + 1;
    atomic_store(&team.next, (uint64_t)number << INDEX_BITS | UINT32_MAX);  // no part can be taken
    atomic_store(&team.part, part);
    atomic_store(&team.work, work);
    atomic_store(&team.parts, parts);
    atomic_store(&team.helpers, threads - 1);
    atomic_store(&team.done, 0);
    atomic_store(&team.next, (uint64_t)number << INDEX_BITS);
    atomic_store(&team.number, number);
    if (atomic_load(&team.sleeping)) {
        const int64_t start = now_ns();
        wake(&team.number, INT_MAX);
        atomic_fetch_add(&team.waited_ns, now_ns() - start);
    }
    take_parts(number);
    if (atomic_load(&team.done) < parts) wait_for(parts);
    atomic_flag_clear(&team.taken);
}

void team_waited(int64_t *all, int64_t *asleep) {
    *all = atomic_load(&team.waited_ns);
    *asleep = atomic_load(&team.slept_ns);
}
