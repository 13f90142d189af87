#include "core/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

constexpr int kGzipFormat = MAX_WBITS + 16;
constexpr std::size_t kBlock = std::size_t{1} << 20;

Bytef* bytes_at(const char* address) {  // zlib only reads from it
  return reinterpret_cast<Bytef*>(const_cast<char*>(address));
}

// The next part of `rest` in zlib's count of bytes.
void give(z_stream& state, std::string_view& rest) {
  const std::size_t bytes = std::min(rest.size(), kBlock);
  state.next_in = bytes_at(rest.data());
  state.avail_in = static_cast<uInt>(bytes);
  rest.remove_prefix(bytes);
}

struct Deflate {
  Deflate() {
    KINTSUGI_CHECK(deflateInit2(&state, 6, Z_DEFLATED, kGzipFormat, 8, Z_DEFAULT_STRATEGY) == Z_OK,
                   "no memory for zlib");
  }
  ~Deflate() { deflateEnd(&state); }
  z_stream state = {};
};

struct Inflate {
  Inflate() { KINTSUGI_CHECK(inflateInit2(&state, kGzipFormat) == Z_OK, "no memory for zlib"); }
  ~Inflate() { inflateEnd(&state); }
  z_stream state = {};
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gzipped(std::string_view text) {
  Deflate deflater;
  z_stream& state = deflater.state;
  std::string result;
  std::vector<char> block(kBlock);
  for (int status = Z_OK; status != Z_STREAM_END;) {
    if (state.avail_in == 0) give(state, text);
    state.next_out = bytes_at(block.data());
    state.avail_out = static_cast<uInt>(block.size());
    status = deflate(&state, text.empty() ? Z_FINISH : Z_NO_FLUSH);
    result.append(block.data(), block.size() - state.avail_out);
  }
  return result;
}

std::string gunzipped(std::string_view bytes, std::size_t limit, std::string_view source,
                      std::string_view remedy) {
  Inflate inflater;
  z_stream& state = inflater.state;
  std::string result;
  std::vector<char> block(kBlock);
  for (;;) {
    if (state.avail_in == 0) give(state, bytes);
    state.next_out = bytes_at(block.data());
    state.avail_out = static_cast<uInt>(block.size());
    const int status = inflate(&state, Z_NO_FLUSH);
    const std::size_t unpacked = block.size() - state.avail_out;
    if (unpacked > limit - result.size())
      user_error("{} has more than {} when unpacked: {}", source,
                 format_bytes(static_cast<double>(limit)), remedy);
    result.append(block.data(), unpacked);
    const bool all_given = state.avail_in == 0 && bytes.empty();
    if (status == Z_STREAM_END) {
      if (all_given) return result;
      inflateReset(&state);  // the next member
    } else if (status == Z_BUF_ERROR && all_given) {
      user_error("{} is damaged: its gzip data end too early", source);
    } else if (status != Z_OK) {
      user_error("{} is damaged: {}", source, state.msg != nullptr ? state.msg : "gzip data error");
    }
  }
}

}  // namespace kintsugi
