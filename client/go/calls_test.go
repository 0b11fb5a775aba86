package rollserve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

func TestErrorsAreTheirKindAndTheOneAboveIt(t *testing.T) {
	server := &script{calls: []scripted{
		{err: failure(codes.PermissionDenied, "SCOPE_MISSING", "")},
		{err: failure(codes.InvalidArgument, "INVALID_VALUE", "step_count")},
		{err: failure(codes.FailedPrecondition, "NO_AGENT", "")},
		{err: failure(codes.ResourceExhausted, "SOME_NEW_REASON", "")},
		{err: failure(codes.Internal, "ENV_FAILED", "")},
		{err: failure(codes.Unavailable, "TOO_FEW_WORKERS", "")},
	}}
	sampler := server.connect(t, rollserve.Config{})
	fail := func() error {
		_, err := sampler.ObtainSamples(context.Background(), 1, nil)
		return err
	}
	is := func(err error, kinds ...error) {
		t.Helper()
		all := []error{
			rollserve.ErrInvalidArgument, rollserve.ErrAccess, rollserve.ErrPrecondition, rollserve.ErrLimit,
			rollserve.ErrUnavailable, rollserve.ErrStopped, rollserve.ErrCancelled, rollserve.ErrDeadline,
			rollserve.ErrServer,
		}
		var got []error
		for _, kind := range all {
			if errors.Is(err, kind) {
				got = append(got, kind)
			}
		}
		same(t, "kinds", got, kinds)
	}
	err := fail()
	is(err, rollserve.ErrInvalidArgument, rollserve.ErrAccess)
	same(t, "reason", rollserve.ReasonOf(err), rollserve.ReasonScopeMissing)
	err = fail()
	is(err, rollserve.ErrInvalidArgument)
	var failed *rollserve.Error
	same(t, "error", errors.As(err, &failed), true)
	same(t, "field", failed.Field, "step_count")
	same(t, "request id", failed.RequestID, "0123456789abcdef")
	same(t, "text", failed.Error(), "rollserve: it failed")
	same(t, "status", status.Code(errors.Unwrap(failed)), codes.InvalidArgument)
	err = fail()
	is(err, rollserve.ErrPrecondition)
	same(t, "reason", rollserve.ReasonOf(fmt.Errorf("wrapped: %w", err)), rollserve.ReasonNoAgent)
	err = fail()
	is(err, rollserve.ErrLimit)
	same(t, "unknown reason", rollserve.ReasonOf(err), rollserve.Reason("SOME_NEW_REASON"))
	is(fail(), rollserve.ErrServer)
	err = fail()
	is(err, rollserve.ErrUnavailable)
	timedOut := &rollserve.Error{Code: codes.DeadlineExceeded, Cause: err}
	is(timedOut, rollserve.ErrStopped, rollserve.ErrDeadline) // not what its cause is
	is(&rollserve.Error{Code: codes.Canceled}, rollserve.ErrStopped, rollserve.ErrCancelled)
	is(&rollserve.Error{}, rollserve.ErrServer)
	same(t, "text of the zero value", (&rollserve.Error{}).Error(), rollserve.ErrServer.Error())
	same(t, "no reason", rollserve.ReasonOf(io.EOF), rollserve.Reason(""))
	same(t, "calls", len(server.requests), 6)
}

func TestContextsAndCloseStopCalls(t *testing.T) {
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err() // which can arrive before the client's own clock stops the call
	}
	server := &script{calls: []scripted{{err: wait}, {err: wait}, {err: wait}}}
	sampler := server.connect(t, rollserve.Config{})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := sampler.ObtainSamples(ctx, 1, nil)
	same(t, "deadline", errors.Is(err, rollserve.ErrDeadline) && errors.Is(err, context.DeadlineExceeded), true)
	same(t, "reason", rollserve.ReasonOf(err), rollserve.Reason(""))

	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = sampler.ObtainSamples(ctx, 1, nil)
	same(t, "cancelled", errors.Is(err, rollserve.ErrCancelled) && errors.Is(err, context.Canceled), true)

	options := &rollserve.SamplingOptions{Timeout: 50 * time.Millisecond}
	_, err = sampler.ObtainSamples(context.Background(), 1, options)
	same(t, "silence", errors.Is(err, rollserve.ErrDeadline), true)
	same(t, "reason", rollserve.ReasonOf(err), rollserve.ReasonNoProgress)

	fatal(t, sampler.Close())
	_, err = sampler.ObtainSamples(context.Background(), 1, nil)
	same(t, "closed", errors.Is(err, rollserve.ErrCancelled), true)
}

func TestConnectionThatStaysSilentIsNoProgress(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and nobody answers
	fatal(t, err)
	defer listener.Close()
	sampler, err := rollserve.Connect(listener.Addr().String(), rollserve.Config{Timeout: 50 * time.Millisecond})
	fatal(t, err)
	defer sampler.Close()
	_, sampling := sampler.ObtainSamples(context.Background(), 1, nil)
	_, evaluating := sampler.Evaluate(context.Background(), 1, nil)
	for _, err := range []error{sampling, evaluating} {
		same(t, "silence", errors.Is(err, rollserve.ErrDeadline), true)
		same(t, "reason", rollserve.ReasonOf(err), rollserve.ReasonNoProgress)
	}
}

func broken(context.Context) error { return status.Error(codes.Unavailable, "connection lost") }

func TestBrokenStreamContinuesWithinAnEpisode(t *testing.T) {
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{beginning(),
			batchOf(segments([4]int{4, 0, 3, 1}, [4]int{6, 0, 2, 0}))}, err: broken}, // episode 5 failed and was skipped
		{err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning(),
			batchOf(segments([4]int{6, 0, 1, 0})), batchOf(segments([4]int{6, 1, 4, 1})), account(1, 5)}},
	}}
	policy, env := int64(1), int64(2)
	options := &rollserve.SamplingOptions{ExpectedPolicyVersion: &policy, ExpectedEnvVersion: &env, Prefetch: true}
	batch, err := server.connect(t, rollserve.Config{}).ObtainSamples(context.Background(), 8, options)
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{3, 5})
	want := []float32{400, 401, 402, 600, 601, 602, 603, 604}
	same(t, "observations", values[float32](t, batch.Observations[""]), want)
	same(t, "steps", batch.Account.NumSteps, int64(8))
	same(t, "failed", batch.Account.NumFailedEpisodes, int64(1))
	same(t, "resumptions", batch.Account.NumResumptions, 2)
	rest := server.requests[2].(*pb.ObtainSamplesRequest)
	same(t, "rest", rest.GetStepCount(), int64(5))
	same(t, "first", rest.Options.GetFirstEpisodeIndex(), uint64(6))
	same(t, "seed", rest.Options.GetSeed(), uint64(1<<63))
	same(t, "run", rest.Options.GetSamplerRun(), "run")
	same(t, "policy", rest.Options.GetPolicyVersion(), int64(1))
	cleared := rest.Options.ExpectedPolicyVersion == nil && rest.Options.ExpectedEnvironmentVersion == nil
	same(t, "cleared", cleared && !rest.Options.Prefetch, true)
}

func TestBrokenStreamThatLacksItsAccountRepeatsTheLastEpisode(t *testing.T) {
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{beginning(),
			batchOf(segments([4]int{4, 0, 3, 1}, [4]int{5, 0, 2, 1}))}, err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning(), batchOf(segments([4]int{5, 0, 2, 1})), account(1, 2)}},
	}}
	batch, err := server.connect(t, rollserve.Config{}).ObtainSamples(context.Background(), 5, nil)
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{3, 2})
	same(t, "rest", server.requests[1].(*pb.ObtainSamplesRequest).GetStepCount(), int64(2))
}

func TestBrokenExactEpisodesAndFragmentsSkipWhatArrived(t *testing.T) {
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{beginning(), batchOf(segments([4]int{4, 0, 3, 1}))}, err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning(), batchOf(segments([4]int{5, 0, 2, 1})), account(1, 2)}},
		{responses: []*pb.ObtainSamplesResponse{beginning(), batchOf(segments([4]int{4, 0, 3, 0}))}, err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning(), batchOf(segments([4]int{5, 0, 2, 0})), account(0, 2)}},
	}}
	sampler := server.connect(t, rollserve.Config{})
	batch, err := sampler.ObtainExactEpisodes(context.Background(), 2, nil)
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{3, 2})
	exact := server.requests[1].(*pb.ObtainExactEpisodesRequest)
	same(t, "skipped", exact.GetSkipEpisodeCount(), uint64(1))
	same(t, "first", exact.Options.GetFirstEpisodeIndex(), uint64(4))
	same(t, "workers", exact.Options.GetWorkerCount(), uint32(3))
	batch, err = sampler.ObtainFragments(context.Background(), 5, nil)
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{3, 2})
	fragments := server.requests[3].(*pb.ObtainSamplesRequest)
	same(t, "skipped", fragments.Fragments.GetSkipStepCount(), uint64(3))
	same(t, "steps", fragments.GetStepCount(), int64(5))
}

func TestBrokenStreamsOfOtherClassesFail(t *testing.T) {
	begun := beginning()
	begun.GetBeginning().Reproducibility = pb.Reproducibility_REPRODUCIBILITY_WORKER
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{begun}, err: broken},
		{responses: []*pb.ObtainSamplesResponse{beginning()}, err: failure(codes.Unavailable, "WORKER_HUNG", "")},
	}}
	sampler := server.connect(t, rollserve.Config{})
	for range server.calls {
		_, err := sampler.ObtainSamples(context.Background(), 5, nil)
		same(t, "error", errors.Is(err, rollserve.ErrUnavailable), true)
	}
}

func TestCallsGoOnWithTheNextServer(t *testing.T) {
	ends := []func(context.Context) error{
		failure(codes.Unavailable, "SERVER_STOPPING", ""),
		failure(codes.Unavailable, "SAMPLER_TAKEN", ""),
		failure(codes.Unavailable, "JOURNAL_LOST", ""),
		func(context.Context) error { return status.Error(codes.Canceled, "CANCELLED") }, // a reset call
	}
	server := &script{calls: []scripted{oneStep()}}
	for _, end := range ends {
		server.calls = append(server.calls, scripted{err: end}, oneStep())
	}
	server.calls = append(server.calls, scripted{err: failure(codes.Unavailable, "TOO_FEW_WORKERS", "")})
	sampler := server.connect(t, rollserve.Config{})
	for i := 0; i <= len(ends); i++ {
		batch, err := sampler.ObtainSamples(context.Background(), 1, nil)
		fatal(t, err)
		same(t, "lengths", batch.Lengths, []int{1})
	}
	_, err := sampler.ObtainSamples(context.Background(), 1, nil)
	same(t, "reason of this server", rollserve.ReasonOf(err), rollserve.ReasonTooFewWorkers)
	same(t, "calls", len(server.requests), len(server.calls))
}

func TestStreamDeliversJoinedResponsesAndItsAccount(t *testing.T) {
	server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{
		joinedResponse(t, beginning(), batchOf(segments([4]int{4, 0, 1, 1})), batchOf(segments([4]int{5, 0, 2, 1}))),
		account(2, 3),
	}}}}
	stream, err := server.connect(t, rollserve.Config{}).StreamSamples(context.Background(), 3, nil)
	fatal(t, err)
	defer stream.Close()
	_, err = stream.Account()
	isInvalid(t, err, "account")
	var lengths []int
	for {
		part, err := stream.Next()
		if err == io.EOF {
			break
		}
		fatal(t, err)
		lengths = append(lengths, part.Lengths...)
	}
	same(t, "lengths", lengths, []int{1, 2})
	total, err := stream.Account()
	fatal(t, err)
	same(t, "account", total.NumSteps, int64(3))
}

func TestJoinAfterNextReturnsTheRestOfTheStream(t *testing.T) {
	server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{
		beginning(), batchOf(segments([4]int{4, 0, 2, 1}, [4]int{5, 0, 1, 0})), batchOf(segments([4]int{5, 1, 3, 1})),
		account(2, 6),
	}}}}
	stream, err := server.connect(t, rollserve.Config{}).StreamSamples(context.Background(), 6, nil)
	fatal(t, err)
	first, err := stream.Next()
	fatal(t, err)
	same(t, "lengths", first.Lengths, []int{2, 1})
	rest, err := stream.Join()
	fatal(t, err)
	same(t, "lengths", rest.Lengths, []int{3})
	same(t, "first steps", rest.FirstSteps, []uint64{1})
	same(t, "account", rest.Account.NumSteps, int64(6))
}

func TestStreamIgnoresContentOfLaterVersions(t *testing.T) {
	later := &pb.ObtainSamplesResponse{}
	later.ProtoReflect().SetUnknown(text(1000, "something new"))
	server := &script{calls: []scripted{
		{responses: []*pb.ObtainSamplesResponse{
			beginning(), later, batchOf(segments([4]int{4, 0, 2, 1})), joinedResponse(t, later, account(1, 2)),
		}},
		{responses: []*pb.ObtainSamplesResponse{joinedResponse(t, joinedResponse(t, beginning()))}},
	}}
	sampler := server.connect(t, rollserve.Config{})
	batch, err := sampler.ObtainSamples(context.Background(), 2, nil)
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{2})
	_, err = sampler.ObtainSamples(context.Background(), 2, nil)
	isServerError(t, err, "content: expected a kind that the call accepts")
}

func TestCallsExpectOwnVersions(t *testing.T) {
	server := &script{calls: []scripted{{}, oneStep(), oneStep()}}
	sampler := server.connect(t, rollserve.Config{Sampler: "mine"})
	version, err := sampler.UpdateAgent(context.Background(), rollserve.RandomAgent{}, nil)
	fatal(t, err)
	same(t, "version", version, int64(7))
	_, err = sampler.ObtainSamples(context.Background(), 1, nil)
	fatal(t, err)
	update, call := server.requests[0].(*pb.UpdateAgentRequest), server.requests[1].(*pb.ObtainSamplesRequest)
	same(t, "policy", call.Options.GetExpectedPolicyVersion(), int64(7))
	same(t, "env", call.Options.GetExpectedEnvironmentVersion(), int64(3))
	same(t, "client", call.Options.GetClientId() == update.GetClientId() && update.GetClientId() != "", true)
	same(t, "sampler", server.metadata[1].Get("rollserve-sampler"), []string{"mine"})
	options := &rollserve.SamplingOptions{PolicyVersion: rollserve.Some[int64](2)}
	_, err = sampler.ObtainSamples(context.Background(), 1, options)
	fatal(t, err)
	same(t, "named", server.requests[2].(*pb.ObtainSamplesRequest).Options.ExpectedPolicyVersion == nil, true)
}

func TestCallsWithAnAgentFailIfTheServerIgnoresIt(t *testing.T) {
	updated := oneStep()
	updated.responses[0].GetBeginning().AgentUpdated = true
	server := &script{calls: []scripted{updated, oneStep(), oneStep()}}
	sampler := server.connect(t, rollserve.Config{})
	options := &rollserve.SamplingOptions{Agent: rollserve.RandomAgent{}}
	_, err := sampler.ObtainSamples(context.Background(), 1, options)
	fatal(t, err)
	_, err = sampler.ObtainSamples(context.Background(), 1, nil)
	fatal(t, err)
	expected := server.requests[1].(*pb.ObtainSamplesRequest).Options
	same(t, "policy", expected.GetExpectedPolicyVersion(), int64(1))
	same(t, "env", expected.GetExpectedEnvironmentVersion(), int64(2))
	_, err = sampler.ObtainSamples(context.Background(), 1, options)
	isServerError(t, err, "Agent: expected a server that knows agents of calls")
	brought := server.requests[2].(*pb.ObtainSamplesRequest).Options
	unchecked := brought.ExpectedPolicyVersion == nil && brought.ExpectedEnvironmentVersion == nil
	same(t, "checked against any environment", unchecked, true)
}

func TestStreamBeginsBeforeItIsRead(t *testing.T) {
	arrived := make(chan struct{})
	server := &script{calls: []scripted{{err: func(context.Context) error { close(arrived); return nil }}}}
	stream, err := server.connect(t, rollserve.Config{}).StreamSamples(context.Background(), 1, nil)
	fatal(t, err)
	defer stream.Close()
	<-arrived
}

func TestWarningsOfTheServerAreHandedOn(t *testing.T) {
	progress := &pb.Progress{Warning: "no episode ends", SimulatedStepCount: 1}
	server := &script{calls: []scripted{{responses: []*pb.ObtainSamplesResponse{
		beginning(), batchOf(segments([4]int{4, 0, 2, 1})),
		{Content: &pb.ObtainSamplesResponse_Progress{Progress: progress}}, account(1, 2),
	}}}}
	var warnings []string
	warn := func(warning string) { warnings = append(warnings, warning) }
	stream, err := server.connect(t, rollserve.Config{Warn: warn}).StreamSamples(context.Background(), 2, nil)
	fatal(t, err)
	defer stream.Close()
	_, err = stream.Next()
	fatal(t, err)
	same(t, "simulated", stream.NumSimulatedSteps(), int64(2))
	_, err = stream.Next()
	same(t, "end", err, io.EOF)
	same(t, "warnings", warnings, []string{"no episode ends"})
	same(t, "warnings", stream.Warnings(), warnings)
}

func TestTokensAreReadForEachCallAndNeverSentInTheClear(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	fatal(t, os.WriteFile(file, []byte("first\n"), 0o600))
	server := &script{calls: []scripted{oneStep(), oneStep()}}
	sampler := server.connect(t, rollserve.Config{TokenFile: file})
	for i, token := range []string{"first", "second"} {
		fatal(t, os.WriteFile(file, []byte(token), 0o600))
		_, err := sampler.ObtainSamples(context.Background(), 1, nil)
		fatal(t, err)
		same(t, "token", server.metadata[i].Get("authorization"), []string{"Bearer " + token})
	}
	fatal(t, os.Remove(file))
	_, err := sampler.ObtainSamples(context.Background(), 1, nil)
	isInvalid(t, err, "TokenFile")
	_, err = rollserve.Connect("server.lab:50051", rollserve.Config{Token: "secret"})
	isInvalid(t, err, "Token")
}

// TestMain gives all tests a proxy where nobody listens; net/http reads the variables once for each process.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "direct.invalid"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func TestProxiesAreNamedAndNotOnTheWayToThisMachine(t *testing.T) {
	for target, isProxied := range map[string]bool{
		"server.invalid:50051": true, "direct.invalid:50051": false, "127.0.0.1:1": false, "localhost:1": false,
	} {
		sampler, err := rollserve.Connect(target, rollserve.Config{})
		fatal(t, err)
		defer sampler.Close()
		_, err = sampler.Status(context.Background())
		if !errors.Is(err, rollserve.ErrUnavailable) ||
			strings.Contains(err.Error(), "(through the proxy of HTTPS_PROXY)") != isProxied {
			t.Errorf("%s: got %v, through a proxy: %v", target, err, isProxied)
		}
	}
}

func TestNewConnectionsReachAServerThatIsBack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	address := listener.Addr().String()
	fatal(t, listener.Close())
	early, err := rollserve.Connect(address, rollserve.Config{})
	fatal(t, err)
	defer early.Close()
	for i := 0; i < 6; i++ {
		if _, err := early.Status(context.Background()); err == nil {
			t.Fatal("a call without a server succeeded")
		}
	}
	listener, err = net.Listen("tcp", address)
	fatal(t, err)
	server := grpc.NewServer()
	pb.RegisterSamplerServiceServer(server, &script{calls: []scripted{oneStep()}})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	sampler, err := rollserve.Connect(address, rollserve.Config{})
	fatal(t, err)
	defer sampler.Close()
	_, err = sampler.ObtainSamples(context.Background(), 1, nil)
	fatal(t, err)
}

func TestMLPDescribesItsParameters(t *testing.T) {
	box := rollserve.BoxSpace{DataType: rollserve.Float32, Shape: []int{2, 3}}
	pair := rollserve.DictSpace{{Name: "a", Space: box}, {Name: "b", Space: rollserve.DiscreteSpace{N: 4}}}
	agent, err := rollserve.InitialMLP(pair, box, []int{8}, rand.New(rand.NewSource(1)))
	fatal(t, err)
	mlp := sent(t, agent)
	same(t, "sizes", mlp.GetLayerSizes(), []uint32{10, 8, 6})
	same(t, "log_std", mlp.GetDiagonalGaussian().GetPredictedLogStd(), false)
	delete(agent.Parameters, "log_std")
	same(t, "predicted", sent(t, agent).GetDiagonalGaussian().GetPredictedLogStd(), true)

	zeros := func(shape ...int) rollserve.Array {
		size := 1
		for _, length := range shape {
			size *= length
		}
		return rollserve.NewArray(make([]float32, size), shape...)
	}
	recurrent := rollserve.MLPAgent{Head: rollserve.EpsilonGreedy, Epsilon: 0.25, Activation: rollserve.ReLU,
		Parameters: rollserve.Parameters{
			"0/weight": zeros(4, 16), "0/bias": zeros(4), "core/weight_ih": zeros(64, 5), "core/weight_hh": zeros(64, 16),
			"value/0/weight": zeros(7, 5), "value/0/norm/weight": zeros(7), "value/1/weight": zeros(1, 7),
		}}
	mlp = sent(t, recurrent)
	same(t, "sizes", mlp.GetLayerSizes(), []uint32{5, 4})
	same(t, "core", mlp.GetLstm().GetSize(), uint32(16))
	same(t, "value", mlp.GetSeparateValue().GetHiddenSizes(), []uint32{7})
	same(t, "norm", mlp.GetLayerNorm() != nil && mlp.GetLayerNorm().Epsilon == nil, true)
	same(t, "head", mlp.GetEpsilonGreedy().GetEpsilon(), 0.25)

	noCore := rollserve.Parameters{"core/weight_hh": zeros(5, 2)}
	for field, wrong := range map[string]rollserve.AgentUpdate{
		"parameters":                   rollserve.MLPAgent{Head: rollserve.Categorical},
		"Head":                         rollserve.MLPAgent{Head: "unknown"},
		"Activation":                   rollserve.MLPAgent{Head: rollserve.Categorical, Activation: "unknown"},
		"Epsilon":                      rollserve.MLPAgent{Head: rollserve.Categorical, Epsilon: 1},
		"parameters['w'].shape":        rollserve.Parameters{"w": rollserve.NewArray([]float32{1, 2}, 3)},
		"parameters['core/weight_hh']": rollserve.MLPAgent{Head: rollserve.Categorical, Parameters: noCore},
		"Kwargs":                       rollserve.PythonAgent{Kwargs: map[string]any{"f": func() {}}},
	} {
		_, err := (&script{}).connect(t, rollserve.Config{}).UpdateAgent(context.Background(), wrong, nil)
		isInvalid(t, err, field)
	}
}

// sent returns the agent that the server receives.
func sent(t *testing.T, agent rollserve.MLPAgent) *pb.MlpAgent {
	t.Helper()
	server := &script{}
	_, err := server.connect(t, rollserve.Config{}).UpdateAgent(context.Background(), agent, nil)
	fatal(t, err)
	return server.requests[0].(*pb.UpdateAgentRequest).GetAllWorkers().GetAgent().GetMlp()
}
