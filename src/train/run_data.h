#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/sampling/sample_order.h"
#include "data/sampling/sample_reader.h"
#include "data/stores/content_record.h"
#include "data/tokenizers/tokenizer.h"
#include "train/config/config.h"

namespace kintsugi {

// What to do with the indexes of packed data in RUN/packing.
enum class PackingFiles : std::uint8_t {
  Make,    // open them, and make those that are missing or damaged
  Verify,  // the same, but read existing ones completely to find damage
  Read,    // write nothing: what is missing is packed in memory
};

// What a checkpoint says of the order of the samples that were trained on.
struct PastOrder {
  std::string fingerprint = {};            // RunData::fingerprint(); empty: not recorded
  std::optional<std::uint64_t> seed = {};  // fingerprints of earlier versions leave it out
};

// The data of a run: its sources, opened and checked against the tokenizer and the model, the order
// of their samples, and the validation sets.
class RunData {
 public:
  // Throws UserError for any problem with the data, except invalid ids, which are found on reading.
  // Resolves the tokenizer if the configuration was only parsed.
  explicit RunData(RunConfig& config, PackingFiles packing = PackingFiles::Make);

  struct Source {
    std::string name;
    std::vector<TokenShard> shards;
    TokenStream train;
    double share = 0;                       // fraction of the run's samples
    double epochs = 0;                      // number of epochs in the run
    std::optional<PackingSummary> packing;  // with packing best_fit
  };
  const std::vector<Source>& sources() const { return sources_; }
  // The shards of every source and every validation set with a store of its own.
  std::vector<std::span<const TokenShard>> stores() const;
  const SampleOrder& order() const { return *order_; }
  const std::vector<ValidationSet>& validation() const { return validation_; }
  const SampleOptions& sample_options() const { return options_; }
  SampleOptions validation_options() const;  // validation sets of text are windows
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // The format of the conversations in the training data; nullptr: it has none, or several.
  const ChatFormat* chat_format() const;
  // Hashes everything that determines the order of the samples, and the sizes and the ends of the
  // files. Cheap enough for every rank.
  std::string fingerprint() const;
  std::string held_out_fingerprint() const;
  // Says what differs from an earlier order; empty if nothing does.
  std::string difference_from(const PastOrder& past) const;
  // Compares the file contents that the fingerprint leaves out with `record` if the run continues.
  // One rank calls it. Throws UserError if a file changed.
  ComparedContent compare_content(const std::filesystem::path& record, bool continues) const;
  // Compares, and writes `record`. What is too much to read at once is read while the returned
  // object exists.
  std::unique_ptr<ContentCheck> check_content(const std::filesystem::path& record,
                                              bool continues) const;
  // The weights of the losses by label (objective.class_weights); empty: all 1.
  const std::vector<float>& class_weights() const { return class_weights_; }
  // The number of text bytes of these targets; targets without a loss are skipped.
  std::int64_t bytes_of(std::span<const std::int32_t> targets) const;

 private:
  struct HeldOutSet {
    std::string name;
    std::vector<TokenShard> shards;  // empty: `stream` refers to the shards of a source
    TokenStream stream;
  };
  void open_source(const DataSource& source, const RunConfig& config);
  // One entry per source; empty if the configuration gives no weight.
  std::vector<std::optional<double>> source_weights(const DataConfig& data) const;
  std::unique_ptr<SourceSamples> samples_of(Source& source, const RunConfig& config,
                                            PackingFiles packing);
  void make_order(const RunConfig& config, PackingFiles packing);
  // Returns the integer weight of each source.
  std::vector<double> make_shuffled_order(const RunConfig& config,
                                          const std::vector<std::optional<double>>& weights,
                                          PackingFiles packing);
  // Returns the fraction of the samples that each source gets.
  std::vector<double> make_megatron_order(const RunConfig& config,
                                          const std::vector<std::optional<double>>& weights);
  void open_validation(const RunConfig& config);
  void weigh_classes(const RunConfig& config);
  ValidationSet validation_set(const HeldOutSet& held, const RunConfig& config) const;
  std::vector<TokenShard> open_checked(const std::string& path, const RunConfig& config) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::int32_t> bytes_;  // text bytes of each token
  SampleOptions options_;
  std::vector<float> class_weights_;
  bool packed_validation_ = false;
  std::vector<Source> sources_;
  std::set<std::string> chat_formats_;  // of the sources
  std::vector<HeldOutSet> held_out_;    // one per validation set
  std::unique_ptr<SampleOrder> order_;
  std::vector<ValidationSet> validation_;
};

}  // namespace kintsugi
