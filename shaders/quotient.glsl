// n / d for n below 2^31, by a multiplication and a shift.  `multiplier` and `shift` are what
// ag/engine/backends/shader/plans.py makes of d: a member by_d of Args, which the backend fills in by its name.
uint quotient(uint n, uint multiplier, uint shift) {
    uint high, low;
    umulExtended(n, multiplier, high, low);
    return (high + n) >> shift;
}
