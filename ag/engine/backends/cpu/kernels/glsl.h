// What the text of shaders/functions.glsl means in C.  tools/cpu_kernels.py puts that text behind this header, with an
// `f` at every constant, so that both kinds of devices compute with one text.
#ifndef GLSL_H
#define GLSL_H
#include "ag.h"

#define precise
#define uint uint32_t
#define uintBitsToFloat float_of
#define floatBitsToUint bits_of
#define isnan(x) ((x) != (x))
#define isinf(x) (__builtin_fabsf(x) == __builtin_inff())
#define abs(x) __builtin_fabsf(x)
#define floor(x) __builtin_floorf(x)
#define ceil(x) __builtin_ceilf(x)
#define trunc(x) __builtin_truncf(x)
#define sqrt(x) __builtin_sqrtf(x)
#define exp(x) exp_(x)
#define log(x) log_(x)
#endif
