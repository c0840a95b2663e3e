// object_file.h: the file of an object -> its machine, and whether all of it is there.
#pragma once

namespace sk::model {

// The machine of the header, such as EM_X86_64; EM_NONE: the file is no ELF file of 64 bits, or cannot be read.
int machine_of(int file);

// Whether the file has all bytes that its segments name. The loader maps what is missing, and reading it is a bus error.
bool is_complete(int file);

}  // namespace sk::model
