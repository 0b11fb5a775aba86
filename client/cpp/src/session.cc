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

v1::DriveEnvironmentsRequest fragment_end() {
  v1::DriveEnvironmentsRequest request;
  request.mutable_fragment_end();
  return request;
}

v1::DriveEnvironmentsRequest session_end(bool has_account) {
  v1::DriveEnvironmentsRequest request;
  request.mutable_session_end()->set_has_account(has_account);
  return request;
}

[[noreturn]] void raise_precondition(const std::string& field, const std::string& expected, const std::string& got) {
  raise({mismatch_text(field, expected, got), {StatusCode::FailedPrecondition, "", field, ""}});
}

}  // namespace

SessionState::SessionState(std::shared_ptr<Connection> connection, v1::DriveEnvironmentsRequest first,
                           const DriveOptions& options)
    : connection_(std::move(connection)),
      control_(connection_->open_call(options.cancellation)),
      limits_(connection_->timeout_of(options.timeout), std::nullopt),
      interruptions_(connection_->contact(), limits_),
      first_(std::move(first)),
      info_forms_(forms_of(options.agent_infos)),
      lasts_(first_.has_resumption() || first_.spec().lease_seconds() > 0),
      is_ready_(options.min_ready > 0),
      records_(options.record),
      position_(is_ready_) {
  start();
  read_until([this] { return has_begun_; });
}

/// Begin a stream: of a new session, or of one that goes on.
void SessionState::start() {
  v1::DriveEnvironmentsRequest request = first_;
  if (has_begun_) {
    v1::DriveResumption& resumption = *request.mutable_resumption();  // in place of a spec
    resumption.set_sampler(connection_->config().sampler);
    resumption.set_token(token_);
    resumption.set_round_count(num_rounds_);
    round_.clear();
  }
  rpc_ = std::make_unique<Rpc>(*connection_, *control_, limits_.until, "DriveEnvironments", request.SerializeAsString(),
                               true);
}

/// Send what the stream before may have lost.
void SessionState::send_again() {
  for (const auto& request : outstanding_) send_in_attempt(request);
  if (wants_fragment_end_) send_in_attempt(fragment_end());
  if (wants_end_ && lasts_) send_in_attempt(session_end(false));
}

const DrivenStep& SessionState::observe() {
  if (!step_) {
    read_until([this] { return !unread_.empty(); });
    step_ = std::move(unread_.front());
    unread_.pop_front();
  }
  return *step_;
}

const DrivenStep& SessionState::step(const Columns& actions, const Columns& agent_infos,
                                     const std::vector<bool>& idle) {
  if (is_ready_) raise_invalid("step", "a session whose rows step together (call send() and recv())", "min_ready");
  v1::DriveEnvironmentsRequest request;
  v1::DrivenActions& message = *request.mutable_actions();
  message.set_step(observe().number);
  write_rows("actions", actions, action_forms_, num_rows_, *message.mutable_actions());
  write_rows("agent_infos", agent_infos, info_forms_, num_rows_, *message.mutable_agent_infos());
  if (!idle.empty() && idle.size() != num_rows_) {
    raise_invalid("idle", std::to_string(num_rows_) + " truth values", std::to_string(idle.size()));
  }
  message.mutable_idle()->Add(idle.begin(), idle.end());
  act(std::move(request), num_rows_ - static_cast<std::size_t>(std::count(idle.begin(), idle.end(), true)));
  step_.reset();
  return observe();
}

void SessionState::send(const Columns& actions, std::vector<std::size_t> rows, const Columns& agent_infos) {
  check_ready("send");
  if (rows.empty()) rows = observe().rows;
  v1::DriveEnvironmentsRequest request;
  v1::DrivenActions& message = *request.mutable_actions();
  message.set_step(observe().number);
  write_rows("actions", actions, action_forms_, rows.size(), *message.mutable_actions());
  write_rows("agent_infos", agent_infos, info_forms_, rows.size(), *message.mutable_agent_infos());
  position_.ask(rows, message);
  act(std::move(request), rows.size());
}

const DrivenStep& SessionState::recv() {
  check_ready("recv");
  step_.reset();
  return observe();
}

void SessionState::check_ready(const char* method) const {
  if (!is_ready_) raise_invalid(method, "a session with min_ready (call step())", "one whose rows step together");
}

void SessionState::act(v1::DriveEnvironmentsRequest request, std::uint64_t num_steps) {
  num_unrecorded_ += num_steps;
  if (lasts_) outstanding_.push_back(request);
  send(request);
}

EpisodeBatch SessionState::batch() {
  if (!has_all_recorded()) {
    wants_fragment_end_ = true;
    send(fragment_end());
    read_until([this] { return has_all_recorded(); });
  }
  if (batches_.empty()) raise_precondition("batch", "steps that are recorded and not taken", "none");
  return join_rounds(std::exchange(batches_, {}), std::exchange(round_begins_, {}));
}

bool SessionState::has_all_recorded() const { return !records_ || num_unrecorded_ == 0; }

const Account& SessionState::end() {
  if (!final_account_) {
    wants_end_ = true;
    attempt([this] {
      if (lasts_) {  // closing the requests looks as if the connection were lost
        send_in_attempt(session_end(false));
      } else if (rpc_->end_requests(limits_.timeout) == Rpc::Outcome::Silence) {
        interruptions_.raise_silence();
      }
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
  attempt([&] { send_in_attempt(request); });
}

void SessionState::send_in_attempt(const v1::DriveEnvironmentsRequest& request) {
  if (rpc_->send(request.SerializeAsString(), limits_.timeout) != Rpc::Outcome::Silence) return;
  if (control_->is_cancelled()) control_->raise_cancelled();
  interruptions_.raise_silence();
}

/// Receive the next message, or the end of the session, or begin again, or take the session up where it was.
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
  if (rpc_->is_ok() || account_) {
    if (!account_) throw Malformed("the session ended without its account");
    rpc_.reset();
    final_account_ = std::move(account_);
    return;
  }
  const Failure failure = rpc_->failure();
  rpc_.reset();
  interruptions_.pause(*control_, failure, has_begun_, lasts_ && failure.details.reason != reason::CLIENT_STALLED);
  start();
  send_again();
}

void SessionState::read(v1::DriveEnvironmentsResponse& response) {
  switch (response.content_case()) {
    case v1::DriveEnvironmentsResponse::kBeginning:
      begin(*response.mutable_beginning());
      return;
    case v1::DriveEnvironmentsResponse::kStep:
      show(*response.mutable_step());
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
      if (lasts_) send_in_attempt(session_end(true));  // after which the server forgets the session
      return;
    default:
      return;  // content of a kind that only later clients know
  }
}

void SessionState::begin(v1::Beginning& beginning) {
  num_rows_ = beginning.row_count();
  token_ = beginning.session_token();
  position_.begin(num_rows_);
  observation_space_ = space_of(*beginning.mutable_observation_space());
  action_space_ = space_of(*beginning.mutable_action_space());
  action_forms_ = leaf_forms(action_space_);
  has_begun_ = true;
}

void SessionState::show(v1::DrivenStep& step) {
  interruptions_.wait_for("");
  if (!position_.advance(step)) return;
  interruptions_.advance();
  unread_.push_back(step_of(step, is_ready_));
  outstanding_.erase(std::remove_if(outstanding_.begin(), outstanding_.end(),
                                    [this](const auto& each) { return position_.is_behind(each.actions()); }),
                     outstanding_.end());
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
  num_unrecorded_ -= std::min(num_steps, num_unrecorded_);  // another client may have asked for some of them
  num_rounds_ = round.round_number() + 1;
  wants_fragment_end_ = false;
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

std::string Session::token() const { return state_->token(); }

DrivenStep Session::observe() { return state_->observe(); }

DrivenStep Session::step(const Columns& actions, const Columns& agent_infos, const std::vector<bool>& idle) {
  return state_->step(actions, agent_infos, idle);
}

DrivenStep Session::step(const Array& actions, const Columns& agent_infos, const std::vector<bool>& idle) {
  return state_->step({{"", actions}}, agent_infos, idle);
}

void Session::send(const Columns& actions, const std::vector<std::size_t>& rows, const Columns& agent_infos) {
  state_->send(actions, rows, agent_infos);
}

void Session::send(const Array& actions, const std::vector<std::size_t>& rows, const Columns& agent_infos) {
  state_->send({{"", actions}}, rows, agent_infos);
}

DrivenStep Session::recv() { return state_->recv(); }

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
