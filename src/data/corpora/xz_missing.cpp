#include "core/error.h"
#include "data/corpora/text_decoder.h"

namespace kintsugi {

std::unique_ptr<TextStream::Decoder> make_xz_decoder(const std::string& file) {
  user_error(
      "{} is compressed with xz, and this program was built without liblzma: install liblzma-dev "
      "and build again, or compress the file with gzip or zstd",
      file);
}

}  // namespace kintsugi
