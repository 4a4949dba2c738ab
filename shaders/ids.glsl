// The id at a place of `ids`: with `wraps` a negative one counts from the end of `length` places.  Shaders declare
// all of these.
const uint NOTHING = 0x80000000u;  // an id that is left out, without `wraps`

uint id_at(uint place) {
    const uint id = ids[ids_at + place];
    return wraps != 0 && int(id) < 0 ? id + length : id;
}
