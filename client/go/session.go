package rollserve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// defaultFragmentLength is the number of steps of each row in a fragment of a session.
const defaultFragmentLength = 128

// DriveOptions are options of Sampler.Drive; nil has all defaults.
type DriveOptions struct {
	// Seed is the root seed of the episodes; by default, they are new ones.
	Seed *uint64
	// FragmentLength is the number of steps of each row in a recorded fragment, 128 by default. After a loss, a worker
	// makes at most so many steps again.
	FragmentLength int
	// MaxEpisodeLength is the number of steps after which an episode is truncated; 0 for none.
	MaxEpisodeLength int
	// AgentInfos has an example of each info that comes with a row's actions, such as Scalar(float32(0)) for `log_prob`:
	// it says type and shape.
	AgentInfos map[string]Array
	// ReturnInfos says whether each step has the environments' infos.
	ReturnInfos bool
	// Blackhole says whether to discard the steps, instead of recording them for Session.Batch.
	Blackhole bool
	// MinReady is the number of rows that are enough for a step, which Session.Recv returns; by default, all rows step
	// together.
	MinReady int
	// Lease is how long the session outlives its connection, at most an hour: it goes on by itself when the server is in
	// reach again, and Sampler.ResumeSession takes it up in another process.
	Lease time.Duration
	// EnvVersion is the version of the environment; the current one by default.
	EnvVersion *int64
	// Timeout is how long to wait for a step; by default Config.Timeout. The context's deadline limits the whole session.
	Timeout time.Duration
}

// StepOptions are options of Session.Step; nil has all defaults.
type StepOptions struct {
	// AgentInfos (N, *I) are the infos that the session was begun with.
	AgentInfos Columns
	// Idle (N) says which rows make no step, whatever their actions are: only rows whose present episode has made none,
	// and not where rows are stepped at once. By default, all rows make a step.
	Idle []bool
}

// SendOptions are options of Session.Send; nil has all defaults.
type SendOptions struct {
	// Rows (K) are the rows that act, each of which waits for it. By default, those of the last step.
	Rows []int
	// AgentInfos (K, *I) are the infos that the session was begun with.
	AgentInfos Columns
}

// Session acts in the rows of a sampler, step by step, in place of its agent. The server records what happens.
//
//	session, err := sampler.Drive(ctx, nil)
//	if err != nil { … }
//	defer session.Close()
//	step, err := session.Observe()
//	for i := 0; err == nil && i < 128; i++ {
//		step, err = session.Step(policy(step.Observations), nil)
//	}
//	if err != nil { … }
//	batch, err := session.Batch()
//	account, err := session.End()
//
// A session that has failed returns the same error from then on. One goroutine at a time may use a session; any may
// close it.
type Session struct {
	ctx        context.Context
	cancel     context.CancelFunc
	sampler    *Sampler
	first      *pb.DriveEnvironmentsRequest // what is driven, or which session goes on
	lasts      bool                         // whether it has a lease
	token      string
	minReady   int
	records    bool
	infoForms  map[string]form
	timeout    time.Duration
	breaks     *interruptions
	closed     int32
	attempt    *attempt[*pb.DriveEnvironmentsResponse]
	requests   pb.SamplerService_DriveEnvironmentsClient // once the attempt has begun
	numRows    int
	spaces     [2]Space // of observations and of actions
	forms      map[string]form
	position   sessionPosition
	unread     []*DrivenStep   // that no method has returned
	step       *DrivenStep     // the last one that a method has returned
	round      []*EpisodeBatch // batches of the round that is not complete
	rounds     []*EpisodeBatch // rounds that Batch has not returned
	numRounds  uint64          // of the session, up to the last one that is complete
	unrecorded int             // steps that rows were asked to make, and that no round has brought
	// Of a session with a lease, what a lost stream may have lost: actions that no step has followed, and ends.
	outstanding          []*pb.DriveEnvironmentsRequest
	endsFragment, ending bool
	account              *Account
	err                  error // how the session has ended; io.EOF for its end
}

// form is the type and the shape of a row of a column.
type form struct {
	dataType DataType
	shape    []int
}

// Drive lets the caller act in all rows of the sampler's environments, step by step, in place of its agent.
//
// Rows are reset in the step that ends an episode. The same seed and the same actions give the same episodes, with any
// number of workers and after any crash. The token needs the scope `drive`. The error is an ErrInvalidArgument for
// options that cannot be sent; others come from the session, which begins at once and lasts as long as ctx.
func (s *Sampler) Drive(ctx context.Context, options *DriveOptions) (*Session, error) {
	if options == nil {
		options = &DriveOptions{}
	}
	sampling, timeout, err := s.samplingOptions(&SamplingOptions{
		Seed: options.Seed, MaxEpisodeLength: options.MaxEpisodeLength, EnvVersion: options.EnvVersion,
		Blackhole: options.Blackhole, Timeout: options.Timeout,
	})
	if err != nil {
		return nil, err
	}
	sampling.ExpectedPolicyVersion, sampling.AcceptJoined = nil, false // no agent of the sampler acts
	sampling.ReturnSpaces = true
	if options.MinReady < 0 {
		return nil, invalid("MinReady", "0, or a positive number", options.MinReady)
	}
	forms, examples := map[string]form{}, map[string]Array{}
	for name, example := range options.AgentInfos {
		forms[name] = form{example.DataType, example.Shape}
		examples[name] = zeros(example.DataType, 0, example.Shape)
	}
	infos, err := encodeNamed("AgentInfos", examples)
	if err != nil {
		return nil, err
	}
	length := options.FragmentLength
	if length == 0 {
		length = defaultFragmentLength
	}
	spec := &pb.DriveSpec{
		Sampler: s.config.Sampler, Options: sampling, FragmentLength: int64(length), AgentInfos: infos,
		ReturnInfos: options.ReturnInfos, MinReadyRowCount: uint64(options.MinReady), LeaseSeconds: options.Lease.Seconds(),
	}
	first := &pb.DriveEnvironmentsRequest{Content: &pb.DriveEnvironmentsRequest_Spec{Spec: spec}}
	session := s.newSession(ctx, first, options, forms, timeout)
	session.lasts = options.Lease > 0
	session.open()
	return session, nil
}

// ResumeSession goes on with a session that another client has begun with DriveOptions.Lease, at the same step. The
// options are those that it was begun with; AgentInfos, Blackhole, MinReady and Timeout count.
//
// The client that had the session loses it. Rounds that it may not have got come again. Of a token whose session has
// ended, or belongs to another client, the session's error has ReasonSessionNotFound.
func (s *Sampler) ResumeSession(ctx context.Context, token string, options *DriveOptions) (*Session, error) {
	if options == nil {
		options = &DriveOptions{}
	}
	_, timeout, err := s.samplingOptions(&SamplingOptions{Timeout: options.Timeout})
	if err != nil {
		return nil, err
	}
	forms := map[string]form{}
	for name, example := range options.AgentInfos {
		forms[name] = form{example.DataType, example.Shape}
	}
	session := s.newSession(ctx, resumptionOf(s.config.Sampler, token, 0), options, forms, timeout)
	session.lasts, session.token = true, token
	session.open()
	return session, nil
}

func (s *Sampler) newSession(
	ctx context.Context, first *pb.DriveEnvironmentsRequest, options *DriveOptions, infoForms map[string]form,
	timeout time.Duration,
) *Session {
	ctx, cancel := context.WithCancel(ctx)
	return &Session{
		ctx: ctx, cancel: cancel, sampler: s, first: first, minReady: options.MinReady, records: !options.Blackhole,
		infoForms: infoForms, timeout: timeout, breaks: newInterruptions(s.contact, timeout),
		position: sessionPosition{apart: options.MinReady > 0},
	}
}

func resumptionOf(sampler, token string, numRounds uint64) *pb.DriveEnvironmentsRequest {
	resumption := &pb.DriveResumption{Sampler: sampler, Token: token, RoundCount: numRounds}
	return &pb.DriveEnvironmentsRequest{Content: &pb.DriveEnvironmentsRequest_Resumption{Resumption: resumption}}
}

// open begins a stream: of a new session, or of one that goes on.
func (s *Session) open() {
	begin := []*pb.DriveEnvironmentsRequest{s.first}
	if s.hasBegun() {
		begin[0], s.round = resumptionOf(s.sampler.config.Sampler, s.token, s.numRounds), nil
	}
	begin = append(begin, s.outstanding...)
	if s.endsFragment {
		begin = append(begin, fragmentEnd)
	}
	if s.ending && s.lasts {
		begin = append(begin, sessionEnd(false))
	}
	isComplete := s.ending && !s.lasts
	s.attempt = newAttempt(s.ctx, func(ctx context.Context) (func() (*pb.DriveEnvironmentsResponse, error), error) {
		requests, err := s.sampler.service.DriveEnvironments(ctx)
		if err != nil {
			return nil, err
		}
		s.requests = requests
		for _, request := range begin {
			if err := requests.Send(request); err != nil && err != io.EOF { // which the receiver explains
				return nil, err
			}
		}
		if isComplete {
			_ = requests.CloseSend()
		}
		return requests.Recv, nil
	})
}

func (s *Session) hasBegun() bool { return s.forms != nil }

var fragmentEnd = &pb.DriveEnvironmentsRequest{
	Content: &pb.DriveEnvironmentsRequest_FragmentEnd{FragmentEnd: &pb.FragmentEnd{}},
}

func sessionEnd(hasAccount bool) *pb.DriveEnvironmentsRequest {
	end := &pb.SessionEnd{HasAccount: hasAccount}
	return &pb.DriveEnvironmentsRequest{Content: &pb.DriveEnvironmentsRequest_SessionEnd{SessionEnd: end}}
}

// Token returns what takes a session with a lease up again, once Observe or Recv has returned; see ResumeSession.
func (s *Session) Token() string { return s.token }

// NumRows returns N, the number of rows of all workers, once Observe has returned.
func (s *Session) NumRows() int { return s.numRows }

// ObservationSpace returns the space of a row's observations, once Observe has returned.
func (s *Session) ObservationSpace() Space { return s.spaces[0] }

// ActionSpace returns the space of a row's actions, once Observe has returned.
func (s *Session) ActionSpace() Space { return s.spaces[1] }

// Observe returns the present step, with the observations that the next actions are for.
func (s *Session) Observe() (*DrivenStep, error) {
	if s.step != nil && s.err == nil {
		return s.step, nil
	}
	return s.receive()
}

// receive returns the next step.
func (s *Session) receive() (*DrivenStep, error) {
	for len(s.unread) == 0 || s.err != nil {
		if err := s.next("a session that goes on"); err != nil {
			return nil, err
		}
	}
	s.step, s.unread = s.unread[0], s.unread[1:]
	return s.step, nil
}

// Step acts in all rows, and returns what follows. The actions have an array (N, *A) for each leaf of the action space,
// of its type.
//
// Actions or infos of another form are an ErrInvalidArgument, and the session goes on. If they are outside the action
// space, the session ends with one. No row has stepped then.
func (s *Session) Step(actions Columns, options *StepOptions) (*DrivenStep, error) {
	if options == nil {
		options = &StepOptions{}
	}
	if s.minReady > 0 {
		return nil, invalid("Step", "a session whose rows step together (call Send and Recv)", "MinReady")
	}
	before, err := s.Observe()
	if err != nil {
		return nil, err
	}
	message, err := s.actions(before, actions, options.AgentInfos, s.numRows)
	if err != nil {
		return nil, err
	}
	if length := len(options.Idle); length != 0 && length != s.numRows {
		return nil, invalid("Idle", fmt.Sprintf("%d values, or none", s.numRows), length)
	}
	message.Idle = options.Idle
	for _, isIdle := range options.Idle {
		if isIdle {
			s.unrecorded--
		}
	}
	if err := s.act(message, s.numRows); err != nil {
		return nil, err
	}
	return s.receive()
}

// Send acts in rows of a session with MinReady that wait for it. Recv returns what follows. The actions have an array
// (K, *A) for each leaf of the action space, of its type.
//
// Other rows, and actions or infos of another form, are an ErrInvalidArgument, and the session goes on.
func (s *Session) Send(actions Columns, options *SendOptions) error {
	if options == nil {
		options = &SendOptions{}
	}
	if s.minReady == 0 {
		return invalid("Send", "a session with MinReady (call Step)", "one whose rows step together")
	}
	before, err := s.Observe()
	if err != nil {
		return err
	}
	rows := options.Rows
	if rows == nil {
		rows = before.Rows
	}
	message, err := s.actions(before, actions, options.AgentInfos, len(rows))
	if err != nil {
		return err
	}
	for _, row := range rows {
		message.Rows = append(message.Rows, int64(row))
	}
	if message.RowStepCounts, err = s.position.ask(message.Rows); err != nil {
		return err
	}
	return s.act(message, len(rows))
}

// Recv returns the next step of a session with MinReady, as soon as so many rows are ready.
func (s *Session) Recv() (*DrivenStep, error) {
	if s.minReady == 0 {
		return nil, invalid("Recv", "a session with MinReady (call Step)", "one whose rows step together")
	}
	return s.receive()
}

// actions returns the message with actions of a number of rows.
func (s *Session) actions(before *DrivenStep, actions, infos Columns, numRows int) (*pb.DrivenActions, error) {
	var err error
	message := &pb.DrivenActions{Step: before.Number}
	if message.Actions, err = encode("actions", actions, s.forms, numRows); err != nil {
		return nil, err
	}
	message.AgentInfos, err = encode("AgentInfos", infos, s.infoForms, numRows)
	return message, err
}

// act sends actions of a number of rows.
func (s *Session) act(message *pb.DrivenActions, numRows int) error {
	s.unrecorded += numRows
	request := &pb.DriveEnvironmentsRequest{Content: &pb.DriveEnvironmentsRequest_Actions{Actions: message}}
	if s.lasts {
		s.outstanding = append(s.outstanding, request)
	}
	return s.send(request)
}

// Batch ends the present fragments, and returns all that was recorded since the last call: an ErrPrecondition if
// nothing was. After End, it returns what was recorded and not taken.
func (s *Session) Batch() (*EpisodeBatch, error) {
	if s.isRecording() && s.err == nil {
		s.endsFragment = true
		if err := s.send(fragmentEnd); err != nil {
			return nil, err
		}
	}
	for s.isRecording() {
		if err := s.next("a session that goes on"); err != nil {
			return nil, err
		}
	}
	if len(s.rounds) == 0 {
		return nil, premature("batch", "steps that are recorded and not taken", "none")
	}
	rounds := s.rounds
	s.rounds = nil
	batch, err := Concatenate(rounds...)
	if err != nil {
		return nil, malformed(err)
	}
	return batch, nil
}

func (s *Session) isRecording() bool { return s.unrecorded > 0 && s.records }

// End ends the session with the last step, and returns its account.
func (s *Session) End() (*Account, error) {
	if s.err == nil {
		s.ending = true
		if s.lasts { // closing the requests looks as if the connection were lost
			_ = s.send(sessionEnd(false))
		} else {
			_ = s.send(nil)
		}
	}
	for s.err == nil {
		_ = s.next("")
	}
	return s.Account()
}

// Account returns the account of the session after End; before, an ErrPrecondition. If the session has failed, it
// returns the session's error.
func (s *Session) Account() (*Account, error) {
	switch s.err {
	case io.EOF:
		return s.account, nil
	case nil:
		return nil, premature("account", "a session that has ended (call End)", "one that goes on")
	}
	return nil, s.err
}

// Close cancels the session unless it has ended.
func (s *Session) Close() {
	atomic.StoreInt32(&s.closed, 1)
	s.cancel()
}

// send sends a request, or the end of them. If the call is over, the receiver says how it has ended.
func (s *Session) send(request *pb.DriveEnvironmentsRequest) error {
	defer s.attempt.watch(s.timeout)()
	if <-s.attempt.begun; s.attempt.err != nil {
		return nil
	}
	if request == nil {
		_ = s.requests.CloseSend()
	} else if err := s.requests.Send(request); err != nil && err != io.EOF {
		s.fail(err)
		return s.err
	}
	return nil
}

// next reads a response, or returns how the session has ended; for a session without failure, an ErrPrecondition that
// says what was expected.
func (s *Session) next(expected string) error {
	if s.err == nil {
		response, err := s.attempt.next(s.timeout)
		switch {
		case err == io.EOF && s.account == nil:
			s.fail(malformed(errors.New("the session ended without its account")))
		case err != nil && s.account != nil: // which is all that the client needs
			s.err = io.EOF
			s.cancel()
		case err == nil:
			s.sampler.contact.record()
			if err = s.read(response); err != nil {
				s.fail(malformed(err))
			}
		default:
			s.resume(err)
		}
	}
	if s.err == io.EOF {
		return premature("session", expected, "one that has ended")
	}
	return s.err
}

// resume begins the session, or takes it up, once more after a pause; or ends it with the error of its stream.
func (s *Session) resume(err error) {
	s.attempt.cancel()
	if !s.attempt.expired() && atomic.LoadInt32(&s.closed) == 0 {
		canRepeat := s.lasts && ReasonOf(errorFromRPC(err)) != ReasonClientStalled
		if err = s.breaks.pause(s.ctx, err, s.hasBegun(), canRepeat); err == nil {
			s.open()
			return
		}
	}
	s.fail(err)
}

// fail ends the session with an error.
func (s *Session) fail(err error) {
	switch {
	case s.attempt.expired() && s.ctx.Err() == nil:
		s.err = s.breaks.silence()
	case atomic.LoadInt32(&s.closed) == 1:
		s.err = &Error{Message: "the session was closed", Code: codes.Canceled}
	default:
		s.err = s.breaks.final(s.breaks.errorOf(s.ctx, err))
	}
	s.cancel()
}

func (s *Session) read(response *pb.DriveEnvironmentsResponse) (err error) {
	switch content := response.GetContent().(type) {
	case *pb.DriveEnvironmentsResponse_Beginning:
		s.numRows, s.token = int(content.Beginning.GetRowCount()), content.Beginning.GetSessionToken()
		s.position.begin(s.numRows)
		observations, actions := content.Beginning.GetObservationSpace(), content.Beginning.GetActionSpace()
		if s.spaces[0], s.spaces[1], err = decodeSpaces(observations, actions); err == nil {
			s.forms = map[string]form{}
			addForms(s.forms, s.spaces[1], "")
		}
	case *pb.DriveEnvironmentsResponse_Step:
		s.breaks.waitingFor = ""
		s.breaks.advance()
		err = s.show(content.Step)
	case *pb.DriveEnvironmentsResponse_Batch:
		var batch *EpisodeBatch
		if batch, err = decodeBatch(content.Batch, uint64(s.numRows)); err == nil && batch.Len() > 0 {
			s.round = append(s.round, batch)
		}
	case *pb.DriveEnvironmentsResponse_Round:
		var joined *EpisodeBatch
		if joined, err = Concatenate(withOneShape(s.round, map[string]int64{})...); err == nil {
			s.round, s.rounds = nil, append(s.rounds, joined.Joined())
			s.numRounds, s.endsFragment = content.Round.GetRoundNumber()+1, false
			if s.unrecorded -= joined.NumSteps(); s.unrecorded < 0 { // another client has asked for some of them
				s.unrecorded = 0
			}
		}
	case *pb.DriveEnvironmentsResponse_Progress:
		s.breaks.waitingFor = content.Progress.GetWaitingFor()
		if warning := content.Progress.GetWarning(); warning != "" {
			s.sampler.config.Warn(warning)
		}
	case *pb.DriveEnvironmentsResponse_Account:
		s.account = decodeAccount(content.Account)
		if s.lasts {
			_ = s.requests.Send(sessionEnd(true)) // after which the server forgets the session
		}
	case *pb.DriveEnvironmentsResponse_Shared:
		err = errors.New("content: expected a kind that the call accepts, got another")
	default: // content of a later version, which a client may leave out
	}
	return err
}

// show adds what is new in a step to those that no method has returned.
func (s *Session) show(message *pb.DrivenStep) error {
	isNew, err := s.position.advance(message)
	if err != nil || !isNew {
		return err
	}
	step, err := decodeStep(message, s.numRows, s.minReady > 0)
	if err != nil {
		return err
	}
	s.unread = append(s.unread, step)
	var outstanding []*pb.DriveEnvironmentsRequest
	for _, request := range s.outstanding {
		if !s.position.isBehind(request.GetActions()) {
			outstanding = append(outstanding, request)
		}
	}
	s.outstanding = outstanding
	return nil
}

// encode returns columns of a number of rows as messages, once their names and forms are checked.
func encode(field string, columns Columns, forms map[string]form, numRows int) ([]*pb.NamedTensor, error) {
	names := namesOf(forms)
	if got := columns.Names(); !equal(got, names) {
		return nil, invalid(field, fmt.Sprintf("the columns %q", names), fmt.Sprintf("%q", got))
	}
	for _, name := range names {
		column, form, path := columns[name], forms[name], field
		if name != "" {
			path = fmt.Sprintf("%s['%s']", field, name)
		}
		shape := append([]int{numRows}, form.shape...)
		if column.DataType != form.dataType || !equal(column.Shape, shape) {
			return nil, invalid(path, Array{DataType: form.dataType, Shape: shape}.String(), column)
		}
	}
	return encodeNamed(field, columns)
}

func namesOf(forms map[string]form) []string {
	names := make([]string, 0, len(forms))
	for name := range forms {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// addForms adds the form of each leaf of a space, by its name. The path leads to the space.
func addForms(forms map[string]form, space Space, path string) {
	below := func(name string) string {
		if path == "" {
			return name
		}
		return path + "/" + name
	}
	switch space := space.(type) {
	case BoxSpace:
		forms[path] = form{space.DataType, space.Shape}
	case DiscreteSpace:
		forms[path] = form{Int64, nil}
	case MultiDiscreteSpace:
		forms[path] = form{space.DataType, space.N.Shape}
	case MultiBinarySpace:
		forms[path] = form{Int8, space.Shape}
	case TextSpace:
		forms[path] = form{Uint32, []int{space.MaxLength}}
	case DictSpace:
		for _, named := range space {
			addForms(forms, named.Space, below(named.Name))
		}
	case TupleSpace:
		for i, subspace := range space {
			addForms(forms, subspace, below(fmt.Sprint(i)))
		}
	}
}

// premature returns the error for what a session is not in the state for.
func premature(field, expected, got string) error {
	message := mismatch(field, expected, got).Error()
	return &Error{Message: message, Code: codes.FailedPrecondition, Field: field}
}
