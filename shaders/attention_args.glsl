// The numbers of attention's kernels beside sizes: HIDES are those that hide keys.  A kernel whose scores have terms
// (attention_terms.glsl) defines TERMS, the binding of their first operand.
#ifdef TERMS
#define HIDES terms, group, before, after
#define TERM_OFFSETS , bias_at, mask_at, q_segments_at, k_segments_at, slopes_at
#define TERM_FACTORS , softcap
#else
#define HIDES causal
#define TERM_OFFSETS
#define TERM_FACTORS
#endif
