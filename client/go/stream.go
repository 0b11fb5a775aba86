package rollserve

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Stream delivers the batches of a sampling call as they arrive.
//
// The call begins with the stream, not with its first batch. Each batch can be used alone; Concatenate and Joined make
// whole episodes of several. If the connection or the server is lost, the stream continues where it was once both are
// back. It ends with the last error if no new data has arrived for its timeout since then. Close it, or read it to its
// end:
//
//	stream, err := sampler.StreamSamples(ctx, 10_000, nil)
//	if err != nil { … }
//	defer stream.Close()
//	for {
//		part, err := stream.Next()
//		if err == io.EOF {
//			break
//		}
//		if err != nil { … }
//		fmt.Println(part.NumSteps())
//	}
//	account, err := stream.Account()
//
// One goroutine at a time may read a stream; any may close it.
type Stream struct{ reader }

// Next returns the next batch, and io.EOF after the last one.
func (s *Stream) Next() (*EpisodeBatch, error) {
	batch, err := s.reader.next()
	if err != nil {
		return nil, err
	}
	return batch.(*EpisodeBatch), nil
}

// Join returns the rest of the stream as one batch of whole episodes or fragments, with the account of the whole
// stream. If Next has read the first part of an episode, its rest is a segment that begins later.
func (s *Stream) Join() (*EpisodeBatch, error) {
	batches, before, err := readAll(&s.reader, s.Next)
	if err != nil {
		return nil, err
	}
	return joinWithAccount(batches, s.account, before)
}

// reader reads the batches of a stream, of one agent or of many.
type reader struct {
	ctx        context.Context
	cancel     context.CancelFunc
	sampler    *Sampler
	resumption *resumption
	breaks     *interruptions
	timeout    time.Duration
	many       bool // whether the caller reads batches of many agents
	closed     int32

	attempt   *attempt[*pb.ObtainSamplesResponse]
	unread    []*pb.ObtainSamplesResponse
	numRows   uint64
	simulated int64
	ended     int64
	warnings  []string
	account   *Account
	err       error // how the stream has ended; io.EOF for its end
}

func newReader(ctx context.Context, s *Sampler, call sampling, timeout time.Duration, many bool) reader {
	ctx, cancel := context.WithCancel(ctx)
	reader := reader{
		ctx: ctx, cancel: cancel, sampler: s, timeout: timeout, many: many,
		resumption: newResumption(call), breaks: newInterruptions(s.contact, timeout),
	}
	reader.begin()
	return reader
}

// begin begins the call that delivers what has not been received.
func (s *reader) begin() {
	call := s.resumption.call
	s.attempt = newAttempt(s.ctx, func(ctx context.Context) (func() (*pb.ObtainSamplesResponse, error), error) {
		return call.start(ctx, s.sampler.service)
	})
}

// next returns the next batch, and io.EOF after the last one.
func (s *reader) next() (delivered, error) {
	for s.err == nil {
		batch, err := s.receive()
		if err != nil {
			s.err = err
			s.cancel()
		} else if batch != nil {
			return batch, nil
		}
	}
	return nil, s.err
}

// readAll returns the rest of the batches of a stream, and what was received before them.
func readAll[B any](s *reader, next func() (B, error)) (batches []B, before whole, err error) {
	if s.resumption.call.options().GetBlackhole() {
		return nil, before, invalid("Blackhole", "false for a call that returns a batch (read a stream to its end)", true)
	}
	before = s.resumption.received()
	for {
		batch, err := next()
		if err == io.EOF {
			return batches, before, nil
		}
		if err != nil {
			return nil, before, err
		}
		batches = append(batches, batch)
	}
}

// Account returns the account of the call, after Next has returned io.EOF; before, an ErrInvalidArgument. If the call
// has failed, it returns the call's error.
func (s *reader) Account() (*Account, error) {
	switch s.err {
	case io.EOF:
		return s.account, nil
	case nil:
		return nil, invalid("account", "a stream that was read to its end, until Next returns io.EOF", "one that goes on")
	}
	return nil, s.err
}

// NumSimulatedSteps returns the number of steps that the call has simulated so far, as far as the client knows: at
// least those that it has received.
func (s *reader) NumSimulatedSteps() int64 { return s.simulated }

// NumEndedEpisodes returns the number of episodes that have ended so far, as far as the client knows: at least those
// whose ends it has received, and including episodes that will not be delivered.
func (s *reader) NumEndedEpisodes() int64 {
	if received := int64(s.resumption.received().episodes); received > s.ended {
		return received
	}
	return s.ended
}

// Warnings returns what the server has told about the call so far, such as that no episode ends.
func (s *reader) Warnings() []string { return s.warnings }

// Close cancels the call unless it is over.
func (s *reader) Close() {
	atomic.StoreInt32(&s.closed, 1)
	s.cancel()
}

// receive reads the next response. It returns the part of its batch that was not received before, if there is any.
func (s *reader) receive() (delivered, error) {
	if len(s.unread) > 0 {
		response := s.unread[0]
		s.unread = s.unread[1:]
		return s.read(response)
	}
	response, err := s.attempt.next(s.timeout)
	switch {
	case err == nil:
		s.sampler.contact.record()
		s.unread, err = splitResponse(response)
		return nil, err
	case err == io.EOF:
		if s.account == nil {
			return nil, malformed(errors.New("the stream ended without its account"))
		}
		s.account = s.resumption.whole(s.account)
		return nil, io.EOF
	default:
		return nil, s.resume(err)
	}
}

// resume waits before the next attempt, or returns the error if another attempt cannot help.
func (s *reader) resume(err error) error {
	s.attempt.cancel()
	switch {
	case s.attempt.expired() && s.ctx.Err() == nil:
		return s.breaks.silence()
	case atomic.LoadInt32(&s.closed) == 1:
		return &Error{Message: "the stream was closed", Code: codes.Canceled}
	}
	if err := s.breaks.pause(s.ctx, err, s.resumption.hasBegun(), s.resumption.possible()); err != nil {
		return err
	}
	s.resumption.prepare()
	s.begin()
	return nil
}

func (s *reader) read(response *pb.ObtainSamplesResponse) (delivered, error) {
	switch content := response.GetContent().(type) {
	case *pb.ObtainSamplesResponse_Beginning:
		beginning := content.Beginning
		if !s.resumption.hasBegun() && s.resumption.call.options().GetAgentUpdate() != nil {
			if !beginning.GetAgentUpdated() {
				return nil, agentIgnored()
			}
			s.sampler.own.setAgent(beginning.GetPolicyVersion(), beginning.GetEnvironmentVersion())
		}
		s.resumption.begin(beginning)
		s.numRows = beginning.GetRowCount()
	case *pb.ObtainSamplesResponse_Batch:
		if s.many {
			return nil, invalid("env", "an environment with many agents (call the methods of Sampler)", "one with one agent")
		}
		batch, err := decodeBatch(content.Batch, s.numRows)
		if err != nil {
			return nil, malformed(err)
		}
		return s.take(batch)
	case *pb.ObtainSamplesResponse_MultiAgentBatch:
		if !s.many {
			expected := "an environment with one agent (call the methods of Sampler.MultiAgent)"
			return nil, invalid("env", expected, "one with many agents")
		}
		batch, err := decodeMany(content.MultiAgentBatch)
		if err != nil {
			return nil, malformed(err)
		}
		return s.take(batch)
	case *pb.ObtainSamplesResponse_Progress:
		s.simulatedAtLeast(int64(content.Progress.GetSimulatedStepCount()))
		if count := int64(content.Progress.GetEndedEpisodeCount()); count > s.ended {
			s.ended = count
		}
		s.breaks.waitingFor = content.Progress.GetWaitingFor()
		if warning := content.Progress.GetWarning(); warning != "" {
			s.warnings = append(s.warnings, warning)
			s.sampler.config.Warn(warning)
		}
	case *pb.ObtainSamplesResponse_Account:
		s.account = decodeAccount(content.Account)
		s.simulated = s.account.NumSimulatedSteps
	case *pb.ObtainSamplesResponse_Joined, *pb.ObtainSamplesResponse_Shared:
		return nil, malformed(errors.New("content: expected a kind that the call accepts, got another"))
	default: // content of a later version, which a client may leave out
	}
	return nil, nil
}

// take returns the part of a batch that was not received before, if there is any.
func (s *reader) take(batch delivered) (delivered, error) {
	if batch.Len() == 0 {
		return nil, nil
	}
	s.breaks.waitingFor = ""
	batch, err := s.resumption.take(batch)
	if err != nil || batch == nil {
		return nil, err
	}
	s.breaks.advance()
	s.simulatedAtLeast(int64(s.resumption.received().steps))
	return batch, nil
}

func (s *reader) simulatedAtLeast(numSteps int64) {
	if numSteps > s.simulated {
		s.simulated = numSteps
	}
}

// agentIgnored returns the error for a call with an agent, of a server that does not know such calls.
func agentIgnored() error {
	expected := "a server that knows agents of calls (use UpdateAgent with this one)"
	message := mismatch("Agent", expected, "one of an earlier version, which samples with the agent that is there")
	return &Error{Message: message.Error(), Code: codes.Unimplemented, Field: "Agent", kind: ErrServer}
}

// splitResponse returns the responses that a message joins; the message itself if it is a single one.
func splitResponse(message *pb.ObtainSamplesResponse) ([]*pb.ObtainSamplesResponse, error) {
	joined := message.GetJoined()
	if joined == nil {
		return []*pb.ObtainSamplesResponse{message}, nil
	}
	responses := make([]*pb.ObtainSamplesResponse, len(joined.GetResponses()))
	for i, serialized := range joined.GetResponses() {
		responses[i] = &pb.ObtainSamplesResponse{}
		if err := proto.Unmarshal(serialized, responses[i]); err != nil {
			return nil, malformed(err)
		}
	}
	return responses, nil
}

// attempt is one RPC of a call that streams responses. It is cancelled if nothing arrives for too long.
type attempt[R any] struct {
	cancel  context.CancelFunc
	begun   chan struct{} // closed once the RPC has begun or failed, which sets the next two
	receive func() (R, error)
	err     error
	silent  int32
}

// newAttempt begins an RPC by a function that returns another one, which receives its responses. It does not wait for
// the connection.
func newAttempt[R any](ctx context.Context, start func(context.Context) (func() (R, error), error)) *attempt[R] {
	ctx, cancel := context.WithCancel(ctx)
	a := &attempt[R]{cancel: cancel, begun: make(chan struct{})}
	go func() {
		defer close(a.begun)
		a.receive, a.err = start(ctx)
	}()
	return a
}

// watch cancels the RPC after a time, unless the function that it returns is called before.
func (a *attempt[R]) watch(timeout time.Duration) (stop func()) {
	timer := time.AfterFunc(timeout, func() {
		atomic.StoreInt32(&a.silent, 1)
		a.cancel()
	})
	return func() { timer.Stop() }
}

// next returns the next response. The time for the connection counts, too.
func (a *attempt[R]) next(timeout time.Duration) (response R, err error) {
	defer a.watch(timeout)()
	if <-a.begun; a.err != nil {
		return response, a.err
	}
	return a.receive()
}

func (a *attempt[R]) expired() bool { return atomic.LoadInt32(&a.silent) == 1 }
