#include <lzma.h>

#include "core/error.h"
#include "data/corpora/text_decoder.h"

namespace kintsugi {
namespace {

constexpr std::uint64_t kMostMemory = std::uint64_t{1}
                                      << 30;  // of a dictionary; xz -9 needs 65 MiB

const char* reason_of(lzma_ret code) {
  switch (code) {
    case LZMA_FORMAT_ERROR:
      return "no xz header";
    case LZMA_OPTIONS_ERROR:
      return "unknown options";
    case LZMA_MEMLIMIT_ERROR:
      return "its dictionary needs more than 1 GiB";
    case LZMA_MEM_ERROR:
      return "no memory";
    default:
      return "data error";
  }
}

struct Xz : TextStream::Decoder {
  Xz() = default;
  Xz(const Xz&) = delete;
  Xz& operator=(const Xz&) = delete;
  ~Xz() override { lzma_end(&state); }

  std::string_view magic() const override { return kXzMagic; }
  void start_member() override {
    KINTSUGI_CHECK(lzma_stream_decoder(&state, kMostMemory, 0) == LZMA_OK, "no memory for xz");
  }
  std::size_t read(TextStream::Source& source, std::span<char> buffer) override {
    state.next_out = reinterpret_cast<std::uint8_t*>(buffer.data());
    state.avail_out = buffer.size();
    while (state.avail_out == buffer.size() && !source.damage) {
      const bool more = source.fill();
      if (!more && !inside) return 0;
      if (!inside) {
        skip_padding(source);
        if (!source.fill()) return 0;
        member_begin = source.position();
        start_member();
        inside = true;
      }
      decode(source, more);
    }
    return buffer.size() - state.avail_out;
  }

 private:
  void decode(TextStream::Source& source, bool more) {
    state.next_in = reinterpret_cast<const std::uint8_t*>(source.rest.data());
    state.avail_in = source.rest.size();
    const std::size_t room = state.avail_out;
    const lzma_ret code = lzma_code(&state, more ? LZMA_RUN : LZMA_FINISH);
    source.rest.remove_prefix(source.rest.size() - state.avail_in);
    if (code == LZMA_STREAM_END)
      inside = false;
    else if (code == LZMA_BUF_ERROR || (code == LZMA_OK && !more && state.avail_out == room))
      more ? void() : source.truncated("xz");
    else if (code != LZMA_OK)
      source.damaged("xz", reason_of(code));
  }
  // Zeros may follow a stream.
  static void skip_padding(TextStream::Source& source) {
    while (source.fill()) {
      const std::size_t zeros = source.rest.find_first_not_of('\0');
      source.rest.remove_prefix(std::min(zeros, source.rest.size()));
      if (!source.rest.empty()) return;
    }
  }

  lzma_stream state = LZMA_STREAM_INIT;
};

}  // namespace

std::unique_ptr<TextStream::Decoder> make_xz_decoder(const std::string&) {
  return std::make_unique<Xz>();
}

}  // namespace kintsugi
