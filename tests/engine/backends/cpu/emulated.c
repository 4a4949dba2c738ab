// Runs launches of kernels that were compiled for another processor: emulated.py starts it under an emulator.
//
//     emulated KERNELS.so MEMORY ADDRESS BYTES NAME...
//
// MEMORY is the number of an open file, which this maps at ADDRESS, as emulated.py does: pointers mean the same to both.
// It writes where each NAME of the library lies, then answers requests one after the other.  A request is how many bytes
// of words, how many launches and how many threads; the words follow, as ag_run of kernels/run.c takes them.  The answer
// is a byte.  Knows no kernel; ends with its input.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static int fail(const char *what) {
    fprintf(stderr, "emulated: %s\n", what);
    return 1;
}

int main(int count, char **given) {
    if (count < 5) return fail("KERNELS.so MEMORY ADDRESS BYTES NAME... are needed");
    void *const library = dlopen(given[1], RTLD_NOW);
    if (!library) return fail(dlerror());
    void *const wanted = (void *)(uintptr_t)strtoull(given[3], NULL, 0);
    const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap(wanted, strtoull(given[4], NULL, 0), PROT_READ | PROT_WRITE, flags, atoi(given[2]), 0) != wanted)
        return fail("the memory cannot be mapped where it is wanted");
    void (*const run)(const int64_t *, int64_t, int64_t) =
        (void (*)(const int64_t *, int64_t, int64_t))dlsym(library, "ag_run");
    if (!run) return fail("the library has no ag_run");
    for (int i = 5; i < count; i++) {
        const int64_t address = (intptr_t)dlsym(library, given[i]);
        if (!address) return fail(given[i]);
        fwrite(&address, sizeof address, 1, stdout);
    }
    fflush(stdout);
    int64_t request[3];
    while (fread(request, sizeof request, 1, stdin) == 1) {
        int64_t *const words = malloc((size_t)request[0]);
        if (!words || fread(words, 1, (size_t)request[0], stdin) != (size_t)request[0]) return fail("half a request");
        run(words, request[1], request[2]);
        free(words);
        if (putchar(1) == EOF || fflush(stdout)) return fail("nobody listens");
    }
    return 0;
}
