// Runs launches one after the other, each by as many threads as are free.  ag/engine/backends/cpu/library.py calls it.
//
// A launch is a run of 8-byte words: the kernel's address, how many words there are, whether the work is worth sharing,
// and the kernel's arguments.  A program is a row of launches, so that Python has no part in what happens between them.
//
// The threads of the pool take parts of a launch from a ticket, and so does the caller: where the machine is busy and a
// thread of the pool sleeps, the caller makes its parts, too.  They look for work for some microseconds and sleep then,
// and so does the caller where a thread that has a part was put off its core.
// One caller at a time has the pool; who comes meanwhile works alone.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include "ag.h"

typedef void (*kernel)(const void *arguments, int64_t part, int64_t parts);

enum { MOST_THREADS = 64, PARTS_PER_THREAD = 4, SPINS = 2000 };

static struct {
    kernel run;
    const void *arguments;
} job;
static _Atomic uint64_t ticket;  // number of the job << 32 | its parts << 16 | the next part
static _Atomic int64_t done, sleepers, waits;  // waits: whether the caller sleeps until the last part is made
static atomic_flag taken = ATOMIC_FLAG_INIT;
static int64_t helpers;  // only who has the pool touches it
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, last = PTHREAD_COND_INITIALIZER;

static inline void breathe(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Makes a part of the present job, if one is left.
static int make_a_part(void) {
    uint64_t now = atomic_load_explicit(&ticket, memory_order_acquire);
    for (;;) {
        const uint64_t part = now & 0xFFFF, parts = now >> 16 & 0xFFFF;
        if (part >= parts) return 0;
        if (atomic_compare_exchange_weak_explicit(&ticket, &now, now + 1, memory_order_acq_rel, memory_order_acquire)) {
            job.run(job.arguments, (int64_t)part, (int64_t)parts);  // until it is counted, the job stays
            if (atomic_fetch_add(&done, 1) + 1 == (int64_t)parts && atomic_load(&waits)) {
                pthread_mutex_lock(&mutex);
                pthread_cond_broadcast(&last);
                pthread_mutex_unlock(&mutex);
            }
            return 1;
        }
    }
}

static int none_left(void) {
    const uint64_t now = atomic_load(&ticket);
    return (now & 0xFFFF) >= (now >> 16 & 0xFFFF);
}

static void *help(void *unused) {
    for (;;) {
        int64_t spins = 0;
        while (!make_a_part()) {
            if (++spins < SPINS) {
                breathe();
                continue;
            }
            pthread_mutex_lock(&mutex);
            atomic_fetch_add(&sleepers, 1);
            while (none_left()) pthread_cond_wait(&wake, &mutex);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&mutex);
            spins = 0;
        }
    }
    return unused;
}

static void have_helpers(int64_t wanted) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (helpers >= wanted || pthread_attr_init(&attributes)) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (helpers < wanted && pthread_create(&thread, &attributes, help, NULL) == 0) helpers++;
    pthread_attr_destroy(&attributes);
}

// Another thread has a part and no core: who yields loses its turn, and who sleeps is woken at once.
static void sleep_until_made(int64_t parts) {
    pthread_mutex_lock(&mutex);
    atomic_store(&waits, 1);
    while (atomic_load(&done) < parts) pthread_cond_wait(&last, &mutex);
    atomic_store(&waits, 0);
    pthread_mutex_unlock(&mutex);
}

static void together(kernel run, const void *arguments, int64_t threads) {
    const uint64_t number = (atomic_load(&ticket) >> 32) + 1, parts = (uint64_t)(threads * PARTS_PER_THREAD);
    job.run = run;
    job.arguments = arguments;
    atomic_store(&done, 0);
    atomic_store(&ticket, number << 32 | parts << 16);
    if (atomic_load(&sleepers)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&mutex);
    }
    while (make_a_part()) {}
    for (int64_t spins = 0; atomic_load_explicit(&done, memory_order_acquire) < (int64_t)parts; spins++)
        if (spins < SPINS) breathe();
        else sleep_until_made((int64_t)parts);
}

void ag_run(const int64_t *at, int64_t launches, int64_t threads);
void ag_run(const int64_t *at, int64_t launches, int64_t threads) {
    threads = least(threads, MOST_THREADS);
    const int mine = threads > 1 && !atomic_flag_test_and_set(&taken);
    if (mine) have_helpers(threads - 1);
    for (; launches > 0; launches--, at += at[1]) {
        const kernel run = (kernel)(intptr_t)at[0];
        if (mine && at[2]) together(run, at + 3, threads);
        else run(at + 3, 0, 1);
    }
    if (mine) atomic_flag_clear(&taken);
}

// One launch by the calling thread alone, as most are that Python makes one by one.
void ag_launch(const int64_t *at);
void ag_launch(const int64_t *at) { ag_run(at, 1, 1); }

// A child of fork has none of the threads, and whoever held something was perhaps one of them.
static void forked(void) {
    helpers = 0;
    atomic_store(&ticket, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&waits, 0);
    atomic_flag_clear(&taken);
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&wake, NULL);
    pthread_cond_init(&last, NULL);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

// How much of x86-64 the processor has: 4, 3, or 0 where neither, or it is another one.
int64_t ag_level(void);
int64_t ag_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vl");
    return wide ? 4 : 3;
#else
    return 0;
#endif
}
