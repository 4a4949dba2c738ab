// What a kernel with an epilogue has in its Args besides.
#ifdef CHAIN
#define EPILOGUE uint c_at, d_at, e_at; float value[6];
#else
#define EPILOGUE
#endif
