#include "model/files/fingerprint.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "core/hash.h"
#include "support/raw_model.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// A model with a tensor of 4 KiB, one of 256 KiB and one of 4 MiB.
RawModel sample_model() {
  RawModel model;
  for (const auto& [name, rows] :
       {std::pair("a.norm", 1), std::pair("b.small", 64), std::pair("c.large", 1024)}) {
    RawTensor tensor{"F32", {rows, 1024}, {}};
    for (int i = 0; i < rows * 1024; ++i) tensor.values.push_back(0.001 * (i % 4093));
    model[name] = std::move(tensor);
  }
  return model;
}

class FingerprintOfWeights : public testing::Test {
 protected:
  SafetensorsModel written(const RawModel& model, bool sharded = false) {
    const fs::path path = directory_ / std::to_string(count_++);
    write_raw_model(path, model, sharded);
    return SafetensorsModel(path);
  }
  TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(FingerprintOfWeights, SeesChangesOfEveryTensor) {
  const RawModel model = sample_model();
  const WeightsFingerprint first = fingerprint_of(written(model));
  EXPECT_EQ(fingerprint_of(written(model)), first);
  EXPECT_EQ(fingerprint_of(written(model, true)), first);  // the division into files is no matter
  for (const auto& [name, tensor] : model) {
    RawModel other = model;
    for (double& value : other[name].values) value = -value;
    EXPECT_NE(fingerprint_of(written(other)), first) << name;
    // Its first and its last element are in a block.
    other = model;
    other[name].values.front() += 1;
    EXPECT_NE(fingerprint_of(written(other)), first) << name;
    other = model;
    other[name].values.back() += 1;
    EXPECT_NE(fingerprint_of(written(other)), first) << name;
    other = model;
    other[name].shape = {1024, other[name].shape[0]};
    EXPECT_EQ(fingerprint_of(written(other)) == first, name == "c.large") << name;  // a square
  }
}

// The rule of the versions that recorded 16 digits: tensors of up to 64 KiB.
TEST_F(FingerprintOfWeights, AnOlderRecordIsComparedAsItWasMade) {
  const SafetensorsModel files = written(sample_model());
  StreamHash hash;
  for (const std::string& name : files.names()) {
    const auto found = files.find(name);
    const std::string text = fmt::format("{} {} {}\n", name, found.entry->dtype_name,
                                         fmt::join(found.entry->shape, " "));
    hash.update(text.data(), text.size());
    if (found.bytes().size() <= 65536) hash.update(found.bytes().data(), found.bytes().size());
  }
  const std::string recorded = hex64(hash.digest());
  EXPECT_TRUE(is_old_fingerprint(recorded));
  EXPECT_TRUE(is_same_model(recorded, fingerprint_of(files), files));
  RawModel other = sample_model();
  other["a.norm"].values[0] += 1;
  const SafetensorsModel changed = written(other);
  EXPECT_FALSE(is_same_model(recorded, fingerprint_of(changed), changed));
}

TEST_F(FingerprintOfWeights, ChecksumsFindWhatTheBlocksMiss) {
  const auto with_checksums = [&](const RawModel& model, std::size_t ranges) {
    SafetensorsModel files = written(model);
    const fs::path path = files.files().front().path();
    const std::string bytes = raw_file(path);
    Checksums list;
    for (std::size_t i = 0; i < ranges; ++i) {
      const std::size_t begin = bytes.size() * i / ranges, end = bytes.size() * (i + 1) / ranges;
      list.tensors["model.safetensors"].push_back(
          {begin, end - begin, hex64(hash64(bytes.data() + begin, end - begin))});
    }
    std::ofstream(path.parent_path() / kChecksums) << write_checksums(list);
    return files;
  };
  RawModel other = sample_model();
  other["c.large"].values[100'000] += 1;  // between two blocks
  const SafetensorsModel plain = written(sample_model()), changed = written(other);
  const WeightsFingerprint first = fingerprint_of(plain);
  EXPECT_EQ(fingerprint_of(changed), first);  // the documented limit
  const SafetensorsModel listed = with_checksums(sample_model(), 2),
                         listed_other = with_checksums(other, 2),
                         divided = with_checksums(sample_model(), 3);
  const std::string recorded = fingerprint_of(listed).text();
  EXPECT_FALSE(is_same_model(recorded, fingerprint_of(listed_other), listed_other));
  // The same weights, with other ranges or without checksums.
  EXPECT_TRUE(is_same_model(recorded, fingerprint_of(listed), listed));
  EXPECT_TRUE(is_same_model(recorded, fingerprint_of(divided), divided));
  EXPECT_TRUE(is_same_model(recorded, first, plain));
  EXPECT_TRUE(is_same_model(first.text(), fingerprint_of(listed), listed));
  LocalCommunicator alone("alone");
  EXPECT_EQ(shared_fingerprint(alone, listed), fingerprint_of(listed));
}

}  // namespace
}  // namespace kintsugi
