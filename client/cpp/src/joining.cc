#include "joining.h"

#include <map>
#include <utility>

#include "batch_fields.h"
#include "failures.h"
#include "infos.h"

namespace rollserve::internal {

namespace {

/// Removes the environment's infos whose shape is not the first one of their name, batch by batch, and counts them; and
/// those that no common type holds.
///
/// A server does not mix shapes within a message, so which values are kept does not depend on how episodes are spread
/// over messages.
class ShapeFilter {
 public:
  /// Make a filter for infos of batches, that adds to counts by name.
  ShapeFilter(const std::vector<EpisodeBatch>& batches, Columns EpisodeBatch::*infos,
              std::map<std::string, std::uint64_t>& dropped)
      : dropped_(dropped) {
    std::map<std::string, std::vector<const Array*>> arrays;
    for (const EpisodeBatch& batch : batches) {
      for (const auto& [name, array] : batch.*infos) arrays[name].push_back(&array);
    }
    for (const auto& [name, each] : arrays) {
      try {
        common_type(name, each);
      } catch (const Malformed&) {
        shapes_.emplace(name, Shape{-1});  // no info has it
      }
    }
  }

  /// Return the infos that are kept.
  ///
  /// @param infos infos of the next batch.
  /// @param first_row the first row that counts if it is dropped.
  Columns kept(const Columns& infos, std::size_t first_row) {
    Columns kept;
    for (const auto& [name, array] : infos) {
      if (infos.is_mask(name)) continue;
      const auto mask = infos.mask(name);
      if (shapes_.emplace(name, array.row_shape()).first->second == array.row_shape()) {
        kept.set(name, array);
        if (!mask.empty()) kept.set("_" + name, infos.at("_" + name));
        continue;
      }
      for (std::size_t row = first_row; row < array.num_rows(); ++row) {
        if (mask.empty() || mask[row]) ++dropped_[name];
      }
    }
    return kept;
  }

 private:
  std::map<std::string, std::uint64_t>& dropped_;
  std::map<std::string, Shape> shapes_;
};

/// Remove infos of another shape than the first one of their name, and count their values.
void drop_misfits(std::vector<EpisodeBatch>& batches, std::map<std::string, std::uint64_t>& dropped) {
  ShapeFilter env_infos(batches, &EpisodeBatch::env_infos, dropped);
  ShapeFilter episode_infos(batches, &EpisodeBatch::episode_infos, dropped);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    EpisodeBatch& batch = batches[i];
    batch.env_infos = env_infos.kept(batch.env_infos, 0);
    // The infos of an episode that continues were counted with its first segment.
    const bool continues = i > 0 && follows(batch, 0, batches[i - 1], batches[i - 1].num_segments() - 1);
    batch.episode_infos = episode_infos.kept(batch.episode_infos, continues ? 1 : 0);
  }
}

/// Throw a ServerError unless a batch has as many episodes that end, and as many steps, as the account says.
template <class Batch>
void check_account(const Batch& batch, const Account& account) {
  std::uint64_t num_episodes = 0;
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) num_episodes += batch.ended(i) ? 1 : 0;
  const auto text = [](std::uint64_t episodes, std::uint64_t steps) {
    return std::to_string(episodes) + " episodes that end in " + std::to_string(steps) + " steps";
  };
  if (num_episodes != account.num_episodes || batch.num_steps() != account.num_steps) {
    raise_malformed(
        mismatch_text("account", text(num_episodes, batch.num_steps()), text(account.num_episodes, account.num_steps)));
  }
}

template <class Batch>
Batch concatenated(std::vector<Batch> batches) {
  try {
    return Batch::concatenate(std::move(batches));
  } catch (const InvalidArgumentError& error) {
    raise_malformed(error.what());
  }
}

}  // namespace

EpisodeBatch join_batches(std::vector<EpisodeBatch> batches, Account account) {
  if (batches.empty()) raise_malformed("expected episodes, got none");
  drop_misfits(batches, account.dropped_infos);
  EpisodeBatch joined = concatenated(std::move(batches)).joined();
  check_account(joined, account);
  joined.account = std::move(account);
  return joined;
}

EpisodeBatch join_rounds(std::vector<EpisodeBatch> batches, const std::set<std::size_t>& begins) {
  std::map<std::string, std::uint64_t> dropped;
  drop_misfits(batches, dropped);
  const EpisodeBatch all = concatenated(std::move(batches));
  return merged(all, runs_of(all.num_segments(),
                             [&](std::size_t i) { return begins.count(i) == 0 && follows(all, i, all, i - 1); }));
}

MultiAgentBatch join_batches(std::vector<MultiAgentBatch> batches, Account account) {
  if (batches.empty()) raise_malformed("expected episodes, got none");
  MultiAgentBatch joined = concatenated(std::move(batches)).joined();
  check_account(joined, account);
  joined.account = std::move(account);
  return joined;
}

}  // namespace rollserve::internal
