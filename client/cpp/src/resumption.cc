#include "resumption.h"

#include <utility>

#include "batch_fields.h"
#include "failures.h"
#include "multi_agent_fields.h"

namespace rollserve::internal {

v1::SamplingOptions& options_of(SamplingRequest& request) {
  return std::visit([](auto& content) -> v1::SamplingOptions& { return *content.mutable_options(); }, request);
}

bool is_repeatable(v1::Reproducibility reproducibility) {
  return reproducibility == v1::REPRODUCIBILITY_EPISODE || reproducibility == v1::REPRODUCIBILITY_BLOCK;
}

bool Resumption::possible() const {
  const auto* samples = std::get_if<v1::ObtainSamplesRequest>(&first_);
  // Which workers are the first ones is another question each time.
  const bool is_part = samples != nullptr && samples->fragments().has_fraction_of_workers();
  return beginning_ && is_repeatable(beginning_->reproducibility()) && !is_part;
}

void Resumption::begin(const v1::Beginning& beginning) {
  if (!beginning_) beginning_ = beginning;
}

namespace {

/// Return the number of steps of all agents in a part of an episode.
std::uint64_t agent_steps_of(const EpisodeBatch& batch, std::size_t part) {
  return static_cast<std::uint64_t>(batch.lengths[part]);
}

std::uint64_t agent_steps_of(const MultiAgentBatch& batch, std::size_t part) { return batch.agent_step_counts[part]; }

EpisodeBatch without_received(const EpisodeBatch& batch, std::size_t num_steps, std::uint64_t) {
  return without_first_steps(batch, num_steps);
}

MultiAgentBatch without_received(const MultiAgentBatch& batch, std::size_t num_steps, std::uint64_t num_agent_steps) {
  return without_first_steps(batch, num_steps, num_agent_steps);
}

}  // namespace

template <class Batch>
std::optional<Batch> Resumption::take(Batch batch) {
  if (num_steps_to_skip_ > 0 && batch.episode_indices[0] != index_to_skip_) {
    throw Malformed("episode_indices",
                    "the rest of episode " + std::to_string(index_to_skip_) + ", whose first part was received before",
                    "episode " + std::to_string(batch.episode_indices[0]));
  }
  if (const std::uint64_t skipped = num_steps_to_skip_; skipped > 0) {
    if (skipped >= batch.num_steps()) {
      num_steps_to_skip_ -= batch.num_steps();
      for (std::size_t i = 0; i < batch.lengths.size(); ++i) num_agent_steps_again_ += agent_steps_of(batch, i);
      return std::nullopt;
    }
    num_steps_to_skip_ = 0;
    batch = without_received(batch, skipped, num_partial_agent_steps_ - num_agent_steps_again_);
  }
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    num_partial_steps_ += static_cast<std::uint64_t>(batch.lengths[i]);
    num_partial_agent_steps_ += agent_steps_of(batch, i);
    if (batch.ended(i)) {
      last_index_ = batch.episode_indices[i];
      num_last_steps_ = std::exchange(num_partial_steps_, 0);
      num_last_agent_steps_ = std::exchange(num_partial_agent_steps_, 0);
      num_steps_ += num_last_steps_;
      num_agent_steps_ += num_last_agent_steps_;
      ++num_episodes_;
    }
  }
  partial_index_ = batch.episode_indices.back();
  return batch;
}

template std::optional<EpisodeBatch> Resumption::take(EpisodeBatch batch);
template std::optional<MultiAgentBatch> Resumption::take(MultiAgentBatch batch);

void Resumption::prepare() {
  if (!beginning_) return;
  ++num_resumptions_;
  num_steps_to_skip_ = 0;
  num_agent_steps_again_ = 0;
  call_ = first_;
  const std::uint64_t first = beginning_->first_episode_index();
  if (auto* exact = std::get_if<v1::ObtainExactEpisodesRequest>(&call_)) {
    continue_in(*exact->mutable_options(), true);
    const std::uint64_t next = find_position(0);
    exact->mutable_options()->set_first_episode_index(first - exact->skip_episode_count());
    exact->set_skip_episode_count(exact->skip_episode_count() + next - first);
    return;
  }
  auto& samples = std::get<v1::ObtainSamplesRequest>(call_);
  continue_in(*samples.mutable_options(), samples.has_fragments());
  if (samples.has_fragments()) {
    const std::uint64_t received = num_steps_ + num_partial_steps_;
    before_ = {num_episodes_, received, received, 0};
    samples.mutable_fragments()->set_row_step_count(beginning_->row_step_count());
    samples.mutable_fragments()->set_skip_step_count(samples.fragments().skip_step_count() + received);
    return;
  }
  samples.mutable_options()->set_first_episode_index(find_position(static_cast<std::uint64_t>(samples.step_count())));
  samples.set_step_count(samples.step_count() - static_cast<std::int64_t>(before_.counted));
}

/// Return the index of the first episode that the rest has, and record what was delivered before it. If an episode was
/// received in part, the rest begins with it again.
///
/// @param step_count the number of steps that the stream needs at least; 0 if it needs episodes.
std::uint64_t Resumption::find_position(std::uint64_t step_count) {
  const std::uint64_t first = beginning_->first_episode_index();
  // The index of the last episode counts, not the number of episodes: some may have been skipped.
  std::uint64_t next = num_episodes_ > 0 ? last_index_ + 1 : first;
  const bool counts_agent_steps = options_of(call_).count_agent_steps();
  before_ = {num_episodes_, num_steps_, counts_agent_steps ? num_agent_steps_ : num_steps_, 0};
  if (num_partial_steps_ > 0) {
    next = partial_index_;
    num_steps_to_skip_ = num_partial_steps_;
  } else if (step_count > 0 && before_.counted >= step_count) {
    // Only the account is missing, and a call needs at least one step: request the last episode once more.
    next = last_index_;
    num_steps_to_skip_ = num_last_steps_;
    --before_.episodes;
    before_.steps -= num_last_steps_;
    before_.counted -= counts_agent_steps ? num_last_agent_steps_ : num_last_steps_;
  }
  index_to_skip_ = next;
  before_.failed = next - first - before_.episodes;
  return next;
}

/// Make a call sample with the seed, the versions and the run that the stream began with, and fail with another number
/// of workers if its episodes depend on them.
void Resumption::continue_in(v1::SamplingOptions& options, bool expects_workers) const {
  options.clear_expected_policy_version();  // this and the next two were checked when the stream began
  options.clear_expected_environment_version();
  options.clear_worker_count();
  options.clear_prefetch();      // not allowed with a seed
  options.clear_agent_update();  // made when the stream began
  options.set_seed(beginning_->seed());
  options.set_policy_version(beginning_->policy_version());
  options.set_environment_version(beginning_->environment_version());
  options.set_sampler_run(beginning_->sampler_run());
  if (expects_workers && beginning_->worker_count() > 0) {  // older servers do not report it, and cannot change it
    options.set_worker_count(beginning_->worker_count());
  }
}

Account Resumption::whole(Account account) const {
  if (num_resumptions_ == 0) return account;
  account.num_episodes += before_.episodes;
  account.num_steps += before_.steps;
  account.num_carried_steps += before_.steps;
  account.num_failed_episodes += before_.failed;
  account.num_resumptions = num_resumptions_;
  if (beginning_) account.first_episode_index = beginning_->first_episode_index();
  return account;
}

}  // namespace rollserve::internal
