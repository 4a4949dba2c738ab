// The constants of convolutions: those of tiles, unless DIRECT, of a chain, of the window, and types, in this order.
#include "epilogue_args.glsl"
#if defined(DIRECT) && defined(CHAIN)
#define WINDOW 10
#elif defined(DIRECT)
#define WINDOW 0
#elif defined(CHAIN)
#define WINDOW 18
#else
#define WINDOW 8
#endif
#define TYPES WINDOW + 8
#include "numbers.glsl"

NUMBERS(0, , Out, out_)
QUADS(0, , Out, out)
