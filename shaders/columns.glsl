// Columns along the middle axis of x[outer, length, inner] that a kernel goes over twice: first for what its elements
// have in common, then for what it makes of each.  An invocation loads `loads` elements before it uses the first, so
// that a card has them on their way at once.  If they are its whole share, they stay in registers for the second time.
// Tiles.columns in ag/engine/backends/shader/tiles.py chooses all of these numbers.
#define THREADS_ID 1
#ifndef MOST  // elements of each operand that an invocation keeps; the default is the most, as attention.glsl says
#define MOST 32
#endif
layout(constant_id = 1) const uint THREADS = 128;
layout(constant_id = 2) const uint loads = MOST;
layout(constant_id = 3) const uint whole = 0;
#define TYPES 4
#include "numbers.glsl"
#include "reduce.glsl"
#include "ieee.glsl"

// From k on, every `shares`-th element of the column is the invocation's, up to `end`.  What a pass loads behind the
// end is the last element.  What it loads at once is added up before it is added to what came before, so that long sums
// keep their digits.  Places are computed from k each time, or a compiler would keep them beside the elements.
#define PASS uint k = share; if (k < end) do
#define AGAIN while (whole == 0 && (k += loads * shares) < end)
#define EACH(i) [[unroll]] for (uint i = 0; i < loads; i++)
uint place(uint k, uint i, uint end) { return k + min(i * shares, end - 1 - k); }
bool within(uint k, uint i, uint end) { return i * shares < end - k; }

// The largest number of a column and the sum of exp(x - largest): what was summed up shrinks when a larger number turns
// up.  NaN and infinity end up in the sum.
struct Exponentials { float largest, total; };
#define NONE Exponentials(-INFINITY, 0.0)

float base(float largest) { return largest == -INFINITY ? 0.0 : largest; }

void include(inout Exponentials e, float some[loads], uint k, uint end) {
    float most = e.largest, part = 0.0;
    EACH(i) most = max(most, some[i]);
    EACH(i) part += within(k, i, end) ? ieee_exp(some[i] - base(most)) : 0.0;
    e = Exponentials(most, e.total * ieee_exp(e.largest - base(most)) + part);
}

// Of the whole column, from the shares.
Exponentials column_exponentials(Exponentials share, uint inner) {
    const float largest = column_max(0, share.largest, inner);
    const float total = column_sum(1, share.total * ieee_exp(share.largest - base(largest)), inner);
    return Exponentials(largest, total);
}

// Mean of numbers, and the sum of the squares of their distances from it.  Columns that are kept take two passes.  Of
// others the first element is taken off, so that a large mean costs no digits, and the means of parts are joined by
// their distance (T. F. Chan, G. H. Golub, R. J. LeVeque, 1979).
struct Moments { float count, mean, apart; };

float squares(float some[loads], float mean, uint k, uint end) {
    float sum = 0.0;
    EACH(i) sum += within(k, i, end) ? (some[i] - mean) * (some[i] - mean) : 0.0;
    return sum;
}

void include(inout Moments e, float some[loads], float origin, uint k, uint end) {
    float sum = 0.0;
    if (whole == 0) EACH(i) some[i] -= origin;
    EACH(i) sum += within(k, i, end) ? some[i] : 0.0;
    const float count = float(min((end - k + shares - 1) / shares, loads)), mean = sum / count, all = e.count + count;
    if (whole != 0) {
        e.mean = sum;
        return;
    }
    const float step = mean - e.mean, apart = squares(some, mean, k, end);
    e = Moments(all, e.mean + step * (count / all), e.apart + apart + step * (e.count * (count / all)) * step);
}

// Mean and variance of the whole column.
Moments column_moments(Moments share, float some[loads], float origin, uint k, uint end, uint length, uint inner) {
    const float count = float(length);
    if (whole != 0) {
        const float mean = column_sum(0, share.mean, inner) / count;
        return Moments(count, mean, column_sum(1, k < end ? squares(some, mean, k, end) : 0.0, inner) / count);
    }
    const float mean = column_sum(0, share.mean * share.count, inner) / count, step = share.mean - mean;
    return Moments(count, origin + mean, column_sum(1, share.apart + step * share.count * step, inner) / count);
}
