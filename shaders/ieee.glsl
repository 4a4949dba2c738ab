// exp and log with the special values of IEEE 754, which GLSL leaves open: SwiftShader has exp(NaN) = inf,
// log(-1) = 0 and log(0) = -88.  Whatever takes exp or log includes it: functions.glsl, softmax and attention.
#ifndef IEEE_GLSL
#define IEEE_GLSL
#define INFINITY uintBitsToFloat(0x7F800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7FC00000u)

float ieee_exp(float x) { return isnan(x) ? x : exp(x); }

float ieee_log(float x) {
    if (x > 0.0 && x < INFINITY) return log(x);
    return x == 0.0 ? -INFINITY : x < 0.0 ? NOT_A_NUMBER : x;  // otherwise x is infinite or NaN
}
#endif
