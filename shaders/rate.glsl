// 1 / sqrt(variance + eps); NaN where the variance overflowed, so that no norm is 0 in silence.
float rate_of(float variance, float eps) {
    const float rate = 1.0 / sqrt(variance + eps);
    return rate > 0.0 ? rate : uintBitsToFloat(0x7FC00000u);
}
