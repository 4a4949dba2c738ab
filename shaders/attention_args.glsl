// What the numbers of attention's kernels are beside sizes: `HIDES` says what is hidden from all queries alike.  A kernel
// with TERMS, which is the binding of their first operand, has terms of scores (attention_terms.glsl), too.
#ifdef TERMS
#define HIDES terms, group, before, after
#define TERM_OFFSETS , bias_at, mask_at, q_segments_at, k_segments_at, slopes_at
#define TERM_FACTORS , softcap
#else
#define HIDES causal
#define TERM_OFFSETS
#define TERM_FACTORS
#endif
