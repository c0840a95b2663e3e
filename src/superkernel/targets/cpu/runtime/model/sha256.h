// sha256.h: bytes -> their SHA-256 in hexadecimal digits.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string>

namespace sk::model {

std::string sha256(const void* data, size_t bytes);

// The two ways to hash blocks of 64 bytes into the state: any processor, and processors with instructions for it.
void sha256_blocks_plain(uint32_t state[8], const uint8_t* data, size_t blocks);
bool sha256_blocks_fast(uint32_t state[8], const uint8_t* data, size_t blocks);  // false: nothing done, no such processor

}  // namespace sk::model
