// Sines and angles to a few ulp; of a driver's own sine 11 bits are right.  Included by functions.glsl.

// pi / 2 in parts, three of which have 12 bits
#define PI_1 1.5703125
#define PI_2 4.837512969970703e-4
#define PI_3 7.549533620476723e-8
#define PI_4 2.563344152e-12

// sin(x + shift pi / 2) by Cephes' sinf and cosf.  Cody and Waite's reduction, x - n pi / 2: n in two halves of 12 bits
// makes products and differences exact; n may be off by one, and k mends that before the first one that is rounded
float turned(float x, const float shift) {
    precise float n = floor(0.636619772 * x + 0.5), high = 4096.0 * trunc(n / 4096.0), low = n - high;
    precise float near = x - high * PI_1 - low * PI_1 - high * PI_2 - low * PI_2 - high * PI_3;
    precise float k = floor(0.636619772 * near + 0.5);
    precise float r = near - k * PI_1 - k * PI_2 - (low + k) * PI_3 - n * PI_4, z = r * r;
    precise float sine = r - r * z * (1.6666654611e-1 - z * (8.3321608736e-3 - z * 1.9515295891e-4));
    precise float cosine = z * z * ((2.443315711809948e-5 * z - 1.388731625493765e-3) * z + 4.166664568298827e-2)
                           - 0.5 * z + 1.0, turns = n + k + shift, quadrant = turns - 4.0 * floor(0.25 * turns);
    precise float size = quadrant == 1.0 || quadrant == 3.0 ? cosine : sine, y = quadrant < 2.0 ? size : -size;
    return abs(x) < 16777216.0 ? y : NOT_A_NUMBER;
}

// The smaller of two sizes over the greater; 0 for two zeros, 1 for two infinities
float size_ratio(float a, float b) {
    precise float most = a < b ? b : a, none = a + b;  // also NaN
    return most == 0.0 ? none : a == b ? 1.0 : div_of(a < b ? a : b, most);
}

// The angle whose tangent is a / b, for a and b from 0 on; the polynomial is a minimax one of atan(t) / t
float angle(float a, float b) {
    precise float t = size_ratio(a, b), z = t * t;
    precise float p = (((((((-1.79361831e-3 * z + 1.09145902e-2) * z - 3.11778169e-2) * z + 5.79575635e-2) * z
                          - 8.40344876e-2) * z + 1.09521851e-1) * z - 1.42642409e-1) * z + 1.99985489e-1) * z
                      - 3.33332986e-1, r = t + t * z * p, other = 1.570796327 - r;
    return a > b ? other : r;
}
