// Run launches one after the other, each by as many threads as are free.
// A launch is 8-byte words: the kernel's address, the number of words, whether to share the work, the arguments.  The
// caller and the threads of a pool each have the parts that they had of the launch before, as what these read and wrote
// may still be in their core's cache, and then take some of the others', so a busy machine delays nothing.  They spin for
// some microseconds and then sleep.  One caller at a time has a pool; another one meanwhile works alone.  Callers that share the cores, as
// replicas do, each have a pool of their own.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include "ag.h"

typedef void (*kernel)(const void *arguments, int64_t part, int64_t parts);

enum { MOST_THREADS = 64, MOST_POOLS = 32, SPINS = 2000 };

typedef _Atomic uint64_t __attribute__((aligned(64))) ticket;  // number of the job << 32 | the end of parts << 16 | the next

typedef struct {
    kernel run;  // the job
    const void *arguments;
    int64_t parts, number;
    _Atomic int64_t threads;
    ticket tickets[MOST_THREADS];  // of the caller and of each helper
    _Atomic int64_t done, sleepers, waits;  // waits: whether the caller sleeps until the last part is made
    _Atomic int64_t born, helping;  // threads there have been, and how many of them, the first, the caller wants
    atomic_flag taken;
    int64_t helpers;  // only who has the pool touches it
    pthread_mutex_t mutex;
    pthread_cond_t wake, rest, last;  // rest: of threads that the present caller does not want
} __attribute__((aligned(128))) pool;

#define EMPTY {.taken = ATOMIC_FLAG_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, \
               .rest = PTHREAD_COND_INITIALIZER, .last = PTHREAD_COND_INITIALIZER}
static pool pools[MOST_POOLS] = {[0 ... MOST_POOLS - 1] = EMPTY};

static inline void breathe(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Makes a part of the present job, if this ticket has one left.
static int make_of(pool *p, ticket *of) {
    uint64_t now = atomic_load_explicit(of, memory_order_acquire);
    while ((now & 0xFFFF) < (now >> 16 & 0xFFFF)) {
        if (!atomic_compare_exchange_weak_explicit(of, &now, now + 1, memory_order_acq_rel, memory_order_acquire)) continue;
        const int64_t parts = p->parts;  // until this part is counted, the job stays
        p->run(p->arguments, (int64_t)(now & 0xFFFF), parts);
        if (atomic_fetch_add(&p->done, 1) + 1 == parts && atomic_load(&p->waits)) {
            pthread_mutex_lock(&p->mutex);
            pthread_cond_broadcast(&p->last);
            pthread_mutex_unlock(&p->mutex);
        }
        return 1;
    }
    return 0;
}

static int make_a_part(pool *p, int64_t me) {
    const int64_t threads = atomic_load(&p->threads);
    for (int64_t i = 0; i < threads; i++)
        if (make_of(p, &p->tickets[(me + i) % threads])) return 1;
    return 0;
}

static int none_left(pool *p) {
    const int64_t threads = atomic_load(&p->threads);
    for (int64_t i = 0; i < threads; i++) {
        const uint64_t now = atomic_load(&p->tickets[i]);
        if ((now & 0xFFFF) < (now >> 16 & 0xFFFF)) return 0;
    }
    return 1;
}

static void *help(void *mine) {
    pool *const p = mine;
    const int64_t me = atomic_fetch_add(&p->born, 1);
    for (;;) {
        int64_t spins = 0;
        while (me >= atomic_load_explicit(&p->helping, memory_order_relaxed) || !make_a_part(p, me + 1)) {
            if (++spins < SPINS) {
                breathe();
                continue;
            }
            pthread_mutex_lock(&p->mutex);
            if (me >= atomic_load(&p->helping)) {  // it is no sleeper that a launch would wake
                while (me >= atomic_load(&p->helping)) pthread_cond_wait(&p->rest, &p->mutex);
            } else {
                atomic_fetch_add(&p->sleepers, 1);
                while (none_left(p)) pthread_cond_wait(&p->wake, &p->mutex);
                atomic_fetch_sub(&p->sleepers, 1);
            }
            pthread_mutex_unlock(&p->mutex);
            spins = 0;
        }
    }
    return mine;
}

static void have_helpers(pool *p, int64_t wanted) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (atomic_load(&p->helping) != wanted) {
        pthread_mutex_lock(&p->mutex);
        atomic_store(&p->helping, wanted);
        pthread_cond_broadcast(&p->rest);
        pthread_mutex_unlock(&p->mutex);
    }
    if (p->helpers >= wanted || pthread_attr_init(&attributes)) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (p->helpers < wanted && pthread_create(&thread, &attributes, help, p) == 0) p->helpers++;
    pthread_attr_destroy(&attributes);
}

// Another thread has a part and no core: who yields loses its turn, and who sleeps is woken at once.
static void sleep_until_made(pool *p, int64_t parts) {
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->waits, 1);
    while (atomic_load(&p->done) < parts) pthread_cond_wait(&p->last, &p->mutex);
    atomic_store(&p->waits, 0);
    pthread_mutex_unlock(&p->mutex);
}

static void together(pool *p, kernel run, const void *arguments, int64_t threads) {
    const int64_t parts = threads * PARTS_PER_THREAD;
    p->run = run;
    p->arguments = arguments;
    p->parts = parts;
    p->number++;
    atomic_store(&p->done, 0);
    atomic_store(&p->threads, threads);
    for (int64_t i = 0; i < threads; i++) {
        const int64_t first = i * PARTS_PER_THREAD;
        atomic_store(&p->tickets[i], (uint64_t)(p->number << 32 | (first + PARTS_PER_THREAD) << 16 | first));
    }
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->mutex);
    }
    while (make_a_part(p, 0)) {}
    for (int64_t spins = 0; atomic_load_explicit(&p->done, memory_order_acquire) < (int64_t)parts; spins++)
        if (spins < SPINS) breathe();
        else sleep_until_made(p, parts);
}

// A pool that nobody has, of so many; none if there is none, or the caller is to be alone.
static pool *take(int64_t threads, int64_t callers) {
    for (int64_t k = 0; threads > 1 && k < least(callers, MOST_POOLS); k++)
        if (!atomic_flag_test_and_set(&pools[k].taken)) {
            have_helpers(&pools[k], threads - 1);
            return &pools[k];
        }
    return NULL;
}

// By so many threads, beside so many callers at once, with itself, each of which has as many.
void ag_run_beside(const int64_t *at, int64_t launches, int64_t threads, int64_t callers);
void ag_run_beside(const int64_t *at, int64_t launches, int64_t threads, int64_t callers) {
    threads = least(threads, MOST_THREADS);
    pool *const mine = take(threads, callers);
    for (; launches > 0; launches--, at += at[1]) {
        const kernel run = (kernel)(intptr_t)at[0];
        if (mine && at[2]) together(mine, run, at + 3, threads);
        else run(at + 3, 0, 1);
    }
    if (mine) atomic_flag_clear(&mine->taken);
}

// By so many threads, and other callers work alone meanwhile.
void ag_run(const int64_t *at, int64_t launches, int64_t threads);
void ag_run(const int64_t *at, int64_t launches, int64_t threads) { ag_run_beside(at, launches, threads, 1); }

// One launch by the calling thread alone, as most are that Python makes one by one.
void ag_launch(const int64_t *at);
void ag_launch(const int64_t *at) { ag_run(at, 1, 1); }

// A child of fork has none of the threads, and whoever held something was perhaps one of them.
static void forked(void) {
    for (pool *p = pools; p < pools + MOST_POOLS; p++) {
        p->helpers = 0;
        for (int64_t i = 0; i < MOST_THREADS; i++) atomic_store(&p->tickets[i], 0);
        atomic_store(&p->sleepers, 0);
        atomic_store(&p->waits, 0);
        atomic_store(&p->born, 0);
        atomic_store(&p->helping, 0);
        atomic_flag_clear(&p->taken);
        pthread_mutex_init(&p->mutex, NULL);
        pthread_cond_init(&p->wake, NULL);
        pthread_cond_init(&p->rest, NULL);
        pthread_cond_init(&p->last, NULL);
    }
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
