#include "rollserve/session.h"

#include <algorithm>
#include <utility>

#include "decoding.h"
#include "failures.h"
#include "joining.h"
#include "records.h"
#include "session_state.h"

namespace rollserve {

namespace internal {

namespace {

RowForms forms_of(const Columns& examples) {
  RowForms forms;
  for (const auto& [name, example] : examples) forms.push_back({name, {example.data_type(), example.shape()}});
  return forms;
}

[[noreturn]] void raise_precondition(const std::string& field, const std::string& expected, const std::string& got) {
  raise({mismatch_text(field, expected, got), {StatusCode::FailedPrecondition, "", field, ""}});
}

}  // namespace

SessionState::SessionState(std::shared_ptr<Connection> connection, v1::DriveSpec spec, const DriveOptions& options)
    : connection_(std::move(connection)),
      control_(connection_->open_call(options.cancellation)),
      limits_(connection_->timeout_of(options.timeout), std::nullopt),
      interruptions_(connection_->contact(), limits_),
      info_forms_(forms_of(options.agent_infos)) {
  *first_.mutable_spec() = std::move(spec);
  start();
  read_until([this] { return has_begun_; });
}

void SessionState::start() {
  rpc_ = std::make_unique<Rpc>(*connection_, *control_, limits_.until, "DriveEnvironments", first_.SerializeAsString(),
                               true);
}

const DrivenStep& SessionState::observe() {
  read_until([this] { return step_.has_value(); });
  return *step_;
}

const DrivenStep& SessionState::step(const Columns& actions, const Columns& agent_infos,
                                     const std::vector<bool>& idle) {
  v1::DriveEnvironmentsRequest request;
  v1::DrivenActions& message = *request.mutable_actions();
  message.set_step(observe().number);
  write_rows("actions", actions, action_forms_, num_rows_, *message.mutable_actions());
  write_rows("agent_infos", agent_infos, info_forms_, num_rows_, *message.mutable_agent_infos());
  if (!idle.empty() && idle.size() != num_rows_) {
    raise_invalid("idle", std::to_string(num_rows_) + " truth values", std::to_string(idle.size()));
  }
  message.mutable_idle()->Add(idle.begin(), idle.end());
  send(request);
  num_asked_steps_ += num_rows_ - static_cast<std::size_t>(std::count(idle.begin(), idle.end(), true));
  step_.reset();
  return observe();
}

EpisodeBatch SessionState::batch() {
  if (!has_all_recorded()) {
    v1::DriveEnvironmentsRequest request;
    request.mutable_fragment_end();
    send(request);
    read_until([this] { return has_all_recorded(); });
  }
  if (batches_.empty()) raise_precondition("batch", "steps that are recorded and not taken", "none");
  return join_rounds(std::exchange(batches_, {}), std::exchange(round_begins_, {}));
}

bool SessionState::has_all_recorded() const {
  return first_.spec().options().blackhole() || num_recorded_steps_ >= num_asked_steps_;
}

const Account& SessionState::end() {
  if (!final_account_) {
    attempt([this] {
      if (rpc_->end_requests(limits_.timeout) == Rpc::Outcome::Silence) interruptions_.raise_silence();
    });
    read_until([this] { return final_account_.has_value(); });
  }
  return *final_account_;
}

/// Run a function that sends or receives; what it throws ends the session, and is thrown again by later calls.
template <class Function>
void SessionState::attempt(Function function) {
  if (error_) std::rethrow_exception(error_);
  if (final_account_) raise_precondition("session", "one that goes on", "one that has ended");
  try {
    if (control_->is_cancelled()) control_->raise_cancelled();
    try {
      function();
    } catch (const Malformed& violation) {
      raise_malformed(violation.what());
    }
  } catch (...) {
    rpc_.reset();
    error_ = std::current_exception();
    throw;
  }
}

template <class Condition>
void SessionState::read_until(Condition holds) {
  while (!holds()) attempt([this] { receive(); });
}

void SessionState::send(const v1::DriveEnvironmentsRequest& request) {
  attempt([&] {
    if (rpc_->send(request.SerializeAsString(), limits_.timeout) != Rpc::Outcome::Silence) return;
    if (control_->is_cancelled()) control_->raise_cancelled();
    interruptions_.raise_silence();
  });
}

/// Receive the next message, or the end of the session, or begin again if it had not begun.
void SessionState::receive() {
  v1::DriveEnvironmentsResponse message;
  const auto outcome = rpc_->read(message, limits_.timeout);
  if (outcome == Rpc::Outcome::Message) {
    connection_->contact().was_made = true;
    read(message);
    return;
  }
  if (control_->is_cancelled()) control_->raise_cancelled();
  if (outcome == Rpc::Outcome::Silence) interruptions_.raise_silence();
  if (rpc_->is_ok()) {
    if (!account_) throw Malformed("the session ended without its account");
    rpc_.reset();
    final_account_ = std::move(account_);
    return;
  }
  const Failure failure = rpc_->failure();
  rpc_.reset();
  interruptions_.pause(*control_, failure, has_begun_, false);
  start();
}

void SessionState::read(v1::DriveEnvironmentsResponse& response) {
  switch (response.content_case()) {
    case v1::DriveEnvironmentsResponse::kBeginning:
      begin(*response.mutable_beginning());
      return;
    case v1::DriveEnvironmentsResponse::kStep:
      step_ = step_of(*response.mutable_step());
      interruptions_.wait_for("");
      return;
    case v1::DriveEnvironmentsResponse::kBatch:
      round_.push_back(batch_of(*response.mutable_batch(), num_rows_));
      return;
    case v1::DriveEnvironmentsResponse::kRound:
      end_round(response.round());
      return;
    case v1::DriveEnvironmentsResponse::kProgress:
      interruptions_.wait_for(response.progress().waiting_for());
      if (!response.progress().warning().empty()) connection_->config().warn(response.progress().warning());
      return;
    case v1::DriveEnvironmentsResponse::kAccount:
      account_ = account_of(response.account());
      return;
    default:
      return;  // content of a kind that only later clients know
  }
}

void SessionState::begin(v1::Beginning& beginning) {
  num_rows_ = beginning.row_count();
  observation_space_ = space_of(*beginning.mutable_observation_space());
  action_space_ = space_of(*beginning.mutable_action_space());
  action_forms_ = leaf_forms(action_space_);
  has_begun_ = true;
}

void SessionState::end_round(const v1::StreamRound& round) {
  std::size_t begin = 0;
  for (const EpisodeBatch& batch : batches_) begin += batch.num_segments();
  std::uint64_t num_steps = 0;
  for (EpisodeBatch& batch : std::exchange(round_, {})) {
    num_steps += batch.num_steps();
    batches_.push_back(std::move(batch));
  }
  if (num_steps != round.step_count()) {
    throw Malformed("round", std::to_string(round.step_count()) + " steps", std::to_string(num_steps));
  }
  round_begins_.insert(begin);
  num_recorded_steps_ += num_steps;
}

}  // namespace internal

std::vector<bool> DrivenStep::ended() const {
  std::vector<bool> flags(terminated.size());
  for (const std::size_t row : ended_rows) flags[row] = true;
  return flags;
}

Session::Session(std::unique_ptr<internal::SessionState> state) : state_(std::move(state)) {}

Session::Session(Session&&) noexcept = default;

Session& Session::operator=(Session&&) noexcept = default;

Session::~Session() = default;

std::size_t Session::num_rows() const noexcept { return state_->num_rows(); }

const Space& Session::observation_space() const& noexcept { return state_->observation_space(); }

const Space& Session::action_space() const& noexcept { return state_->action_space(); }

DrivenStep Session::observe() { return state_->observe(); }

DrivenStep Session::step(const Columns& actions, const Columns& agent_infos, const std::vector<bool>& idle) {
  return state_->step(actions, agent_infos, idle);
}

DrivenStep Session::step(const Array& actions, const Columns& agent_infos, const std::vector<bool>& idle) {
  return state_->step({{"", actions}}, agent_infos, idle);
}

EpisodeBatch Session::batch() { return state_->batch(); }

Account Session::end() { return state_->end(); }

const Account& Session::account() const& {
  if (!state_->account()) {
    internal::raise_invalid("account", "a session that has ended (call end())",
                            state_->has_failed() ? "one that has failed" : "one that goes on");
  }
  return *state_->account();
}

void Session::cancel() noexcept { state_->cancel(); }

}  // namespace rollserve
