package rollserve_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// driven is what the server sends in a session: responses for each request, and at the end of the requests.
type driven struct {
	turns [][]*pb.DriveEnvironmentsResponse
	end   []*pb.DriveEnvironmentsResponse
	err   func(context.Context) error // what a request behind the turns ends the session with
	then  *driven                     // what the next stream sends; nil for the same
}

func (s *script) DriveEnvironments(stream pb.SamplerService_DriveEnvironmentsServer) error {
	driven := s.driven
	if driven.then != nil {
		s.driven = *driven.then
	}
	for turn := 0; ; turn++ {
		request, err := stream.Recv()
		responses := driven.end
		if err == nil {
			s.record(stream.Context(), request)
			if turn == len(driven.turns) {
				return driven.err(stream.Context())
			}
			responses = driven.turns[turn]
		}
		for _, response := range responses {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func drivenBeginning(numRows int) *pb.DriveEnvironmentsResponse {
	return &pb.DriveEnvironmentsResponse{Content: &pb.DriveEnvironmentsResponse_Beginning{Beginning: &pb.Beginning{
		RowCount:         uint64(numRows),
		ObservationSpace: &pb.Space{Kind: &pb.Space_Discrete{Discrete: &pb.DiscreteSpace{N: 9}}},
		ActionSpace: &pb.Space{Kind: &pb.Space_Dict{Dict: &pb.DictSpace{Spaces: []*pb.NamedSpace{
			{Name: "gear", Space: &pb.Space{Kind: &pb.Space_Discrete{Discrete: &pb.DiscreteSpace{N: 3}}}},
			{Name: "flags", Space: &pb.Space{Kind: &pb.Space_MultiBinary{
				MultiBinary: &pb.MultiBinarySpace{Shape: []int64{2}},
			}}},
		}}}},
	}}}
}

func drivenStep(number int, workers ...*pb.DrivenRows) *pb.DriveEnvironmentsResponse {
	step := &pb.DrivenStep{Step: uint64(number), Workers: workers}
	return &pb.DriveEnvironmentsResponse{Content: &pb.DriveEnvironmentsResponse_Step{Step: step}}
}

func drivenBatch(batch *pb.EpisodeBatch) *pb.DriveEnvironmentsResponse {
	return &pb.DriveEnvironmentsResponse{Content: &pb.DriveEnvironmentsResponse_Batch{Batch: batch}}
}

func drivenRound() *pb.DriveEnvironmentsResponse {
	return &pb.DriveEnvironmentsResponse{Content: &pb.DriveEnvironmentsResponse_Round{Round: &pb.StreamRound{}}}
}

func drivenAccount(numSteps int) *pb.DriveEnvironmentsResponse {
	account := &pb.Account{StepCount: uint64(numSteps)}
	return &pb.DriveEnvironmentsResponse{Content: &pb.DriveEnvironmentsResponse_Account{Account: account}}
}

// firstRows returns the rows of a worker before the first step.
func firstRows(observations ...int64) *pb.DrivenRows {
	return &pb.DrivenRows{
		Observations:     column("", tensor(int64s, observations, len(observations))),
		EpisodeIndices:   make([]int64, len(observations)),
		EnvironmentSeeds: make([]uint64, len(observations)),
	}
}

// act has actions for a number of rows.
func act(gears ...int64) rollserve.Columns {
	flags := make([]int8, 2*len(gears))
	return rollserve.Columns{
		"gear": rollserve.NewArray(gears), "flags": rollserve.NewArray(flags, len(gears), 2),
	}
}

func TestSessionActsAndReturnsWhatIsRecorded(t *testing.T) {
	ended := &pb.DrivenRows{
		Observations:     column("", tensor(int64s, []int64{4}, 1)),
		EpisodeIndices:   []int64{7},
		Rewards:          []float64{2.5},
		EndedRows:        []int64{0},
		Terminated:       []bool{true},
		Truncated:        []bool{false},
		LastObservations: column("", tensor(int64s, []int64{8}, 1)),
		EnvironmentSeeds: []uint64{1 << 63},
		Infos:            column("speed", tensor(float64s, []float64{0.5}, 1)),
	}
	others := firstRows(2, 3)
	others.Rewards = []float64{1, -1}
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{
			{drivenBeginning(3), drivenStep(0, firstRows(1, 2), firstRows(3))},
			{drivenStep(1, others, ended)},
			{drivenBatch(segments([4]int{0, 0, 1, 0}, [4]int{1, 0, 1, 0})), drivenBatch(segments([4]int{2, 0, 1, 1})),
				drivenRound()},
			{drivenStep(2, firstRows(1, 2), firstRows(3))},
		},
		end: []*pb.DriveEnvironmentsResponse{
			drivenBatch(segments([4]int{0, 1, 1, 0}, [4]int{1, 1, 1, 0})), drivenRound(), drivenAccount(5),
		},
	}}
	sampler := server.connect(t, rollserve.Config{Sampler: "run-7"})
	session, err := sampler.Drive(context.Background(), &rollserve.DriveOptions{
		Seed: rollserve.Some(uint64(5)), FragmentLength: 16, MaxEpisodeLength: 9, ReturnInfos: true,
		AgentInfos: map[string]rollserve.Array{"pair": rollserve.NewArray([]float32{0, 0})},
	})
	fatal(t, err)
	defer session.Close()

	step, err := session.Observe()
	fatal(t, err)
	same(t, "rows", session.NumRows(), 3)
	same(t, "space", session.ObservationSpace(), rollserve.Space(rollserve.DiscreteSpace{N: 9}))
	same(t, "leaves", session.ActionSpace().(rollserve.DictSpace)[1].Name, "flags")
	same(t, "observations", values[int64](t, step.Observations[""]), []int64{1, 2, 3})
	same(t, "rewards", step.Rewards, []float64{0, 0, 0})
	same(t, "none have ended", values[int64](t, step.LastObservations[""]), []int64{})
	if _, err := session.Account(); !errors.Is(err, rollserve.ErrPrecondition) {
		t.Errorf("account before the end: got %v, want an ErrPrecondition", err)
	}

	infos := rollserve.Columns{"pair": rollserve.NewArray(make([]float32, 6), 3, 2)}
	step, err = session.Step(act(0, 1, 2), &rollserve.StepOptions{AgentInfos: infos})
	fatal(t, err)
	same(t, "number", step.Number, uint64(1))
	same(t, "rewards", step.Rewards, []float64{1, -1, 2.5})
	same(t, "ended", step.Ended(), []bool{false, false, true})
	same(t, "terminated", step.Terminated, []bool{false, false, true})
	same(t, "truncated", step.Truncated, []bool{false, false, false})
	same(t, "last observations", values[int64](t, step.LastObservations[""]), []int64{8})
	same(t, "episodes", step.EpisodeIndices, []int64{0, 0, 7})
	same(t, "seeds", step.EnvSeeds, []uint64{0, 0, 1 << 63})
	same(t, "infos", values[float64](t, step.Infos["speed"]), []float64{0, 0, 0.5})
	same(t, "gaps", step.Infos.Mask("speed"), []bool{false, false, true})

	batch, err := session.Batch()
	fatal(t, err)
	same(t, "lengths", batch.Lengths, []int{1, 1, 1})
	same(t, "rows of segments", batch.RowIndices, []uint64{0, 1, 2})
	if _, err := session.Batch(); !errors.Is(err, rollserve.ErrPrecondition) {
		t.Errorf("nothing recorded: got %v, want an ErrPrecondition", err)
	}
	_, err = session.Step(act(1, 1, 1), &rollserve.StepOptions{AgentInfos: infos, Idle: step.Ended()})
	fatal(t, err)
	account, err := session.End()
	fatal(t, err)
	same(t, "steps", account.NumSteps, int64(5))
	batch, err = session.Batch()
	fatal(t, err)
	same(t, "first steps", batch.FirstSteps, []uint64{1, 1})
	if _, err := session.Step(act(1, 1, 1), nil); !errors.Is(err, rollserve.ErrPrecondition) {
		t.Errorf("step after the end: got %v, want an ErrPrecondition", err)
	}

	same(t, "requests", len(server.requests), 4)
	spec := server.requests[0].(*pb.DriveEnvironmentsRequest).GetSpec()
	same(t, "sampler", spec.GetSampler(), "run-7")
	same(t, "fragments", spec.GetFragmentLength(), int64(16))
	same(t, "info", spec.GetAgentInfos()[0].GetTensor().GetShape(), []int64{0, 2})
	same(t, "no policy", spec.GetOptions().ExpectedPolicyVersion, (*int64)(nil))
	actions := server.requests[3].(*pb.DriveEnvironmentsRequest).GetActions()
	same(t, "step", actions.GetStep(), uint64(1))
	same(t, "idle", actions.GetIdle(), []bool{false, false, true})
	same(t, "leaves", len(actions.GetActions()), 2)
	end := &pb.DriveEnvironmentsRequest{
		Content: &pb.DriveEnvironmentsRequest_FragmentEnd{FragmentEnd: &pb.FragmentEnd{}},
	}
	same(t, "end of fragments", proto.Equal(server.requests[2], end), true)
}

// lasting returns the beginning of a session with a lease.
func lasting(numRows int) *pb.DriveEnvironmentsResponse {
	beginning := drivenBeginning(numRows)
	beginning.GetBeginning().SessionToken = "token-7"
	return beginning
}

func TestSessionWithALeaseGoesOnAfterItsStreamBreaks(t *testing.T) {
	round := drivenRound()
	round.GetRound().RoundNumber = 4
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{
			{lasting(1), drivenStep(0, firstRows(1))},
			{drivenStep(1, firstRows(2)), drivenBatch(segments([4]int{0, 0, 1, 0})), round,
				drivenBatch(segments([4]int{0, 1, 1, 0}))}, // a round whose end is lost
		},
		err: func(context.Context) error { return status.Error(codes.Unavailable, "the connection is lost") },
		then: &driven{
			turns: [][]*pb.DriveEnvironmentsResponse{
				{lasting(1), drivenStep(1, firstRows(2))},
				{drivenStep(2, firstRows(3))},
				{drivenBatch(segments([4]int{0, 1, 1, 0})), drivenRound(), drivenAccount(2)},
				{},
			},
		},
	}}
	session, err := server.connect(t, rollserve.Config{Sampler: "run-7"}).Drive(
		context.Background(), &rollserve.DriveOptions{Lease: time.Minute},
	)
	fatal(t, err)
	defer session.Close()
	_, err = session.Step(act(0), nil)
	fatal(t, err)
	same(t, "token", session.Token(), "token-7")
	step, err := session.Step(act(1), nil)
	fatal(t, err)
	same(t, "number", step.Number, uint64(2))
	account, err := session.End()
	fatal(t, err)
	same(t, "steps", account.NumSteps, int64(2))
	batch, err := session.Batch()
	fatal(t, err)
	same(t, "first steps", batch.FirstSteps, []uint64{0, 1})

	same(t, "requests", len(server.requests), 7)
	same(t, "lease", server.requests[0].(*pb.DriveEnvironmentsRequest).GetSpec().GetLeaseSeconds(), 60.0)
	resumption := server.requests[3].(*pb.DriveEnvironmentsRequest).GetResumption()
	same(t, "sampler", resumption.GetSampler(), "run-7")
	same(t, "token", resumption.GetToken(), "token-7")
	same(t, "rounds", resumption.GetRoundCount(), uint64(5))
	same(t, "actions again", proto.Equal(server.requests[4], server.requests[2]), true)
	same(t, "end", server.requests[5].(*pb.DriveEnvironmentsRequest).GetSessionEnd().GetHasAccount(), false)
	same(t, "receipt", server.requests[6].(*pb.DriveEnvironmentsRequest).GetSessionEnd().GetHasAccount(), true)
}

func TestSessionIsTakenUpByItsToken(t *testing.T) {
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{
			{lasting(2), drivenStep(5, firstRows(1, 2))}, {drivenStep(6, firstRows(3, 4))},
		},
		err: failure(codes.NotFound, "SESSION_NOT_FOUND", "resumption.token"),
	}}
	session, err := server.connect(t, rollserve.Config{}).ResumeSession(context.Background(), "token-7", nil)
	fatal(t, err)
	defer session.Close()
	step, err := session.Step(act(0, 1), nil)
	fatal(t, err)
	same(t, "number", step.Number, uint64(6))
	_, err = session.Step(act(0, 1), nil)
	same(t, "reason", rollserve.ReasonOf(err), rollserve.ReasonSessionNotFound)
	same(t, "token", server.requests[0].(*pb.DriveEnvironmentsRequest).GetResumption().GetToken(), "token-7")
	same(t, "step", server.requests[1].(*pb.DriveEnvironmentsRequest).GetActions().GetStep(), uint64(5))
}

// readyRows returns rows of a worker that have made a number of steps.
func readyRows(made int64, rows ...int64) *pb.DrivenRows {
	ready := firstRows(rows...)
	for range rows {
		ready.RowStepCounts = append(ready.RowStepCounts, made)
	}
	ready.Rows = rows
	return ready
}

func TestRowsDoNotWaitForEachOther(t *testing.T) {
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{
			{lasting(4), drivenStep(0, readyRows(0, 2, 3))},
			{drivenStep(1, readyRows(0, 0, 1))},
		},
		err: func(context.Context) error { return status.Error(codes.Unavailable, "the connection is lost") },
		then: &driven{turns: [][]*pb.DriveEnvironmentsResponse{
			{lasting(4), drivenStep(3, readyRows(0, 0, 1), readyRows(1, 2, 3))}, {},
			{drivenStep(4, readyRows(1, 0, 1))},
		}},
	}}
	session, err := server.connect(t, rollserve.Config{}).Drive(
		context.Background(), &rollserve.DriveOptions{MinReady: 2, Lease: time.Minute},
	)
	fatal(t, err)
	defer session.Close()
	step, err := session.Recv()
	fatal(t, err)
	same(t, "rows", step.Rows, []int{2, 3})
	same(t, "observations", values[int64](t, step.Observations[""]), []int64{2, 3})
	for field, rows := range map[string][]int{"Rows[0]": {0, 2}, "Rows[1]": {2, 2}, "actions['flags']": {2, 3, 2}} {
		isInvalid(t, session.Send(act(0, 1), &rollserve.SendOptions{Rows: rows}), field)
	}
	_, err = session.Step(act(0, 1), nil)
	isInvalid(t, err, "Step")
	fatal(t, session.Send(act(0, 1), &rollserve.SendOptions{Rows: []int{3, 2}}))
	isInvalid(t, session.Send(act(0, 1), nil), "Rows[0]") // which have acted
	step, err = session.Recv()
	fatal(t, err)
	same(t, "rows", step.Rows, []int{0, 1})
	fatal(t, session.Send(act(1, 1), nil))
	step, err = session.Recv()
	fatal(t, err)
	same(t, "new rows", step.Rows, []int{2, 3})
	same(t, "row steps", step.RowSteps, []int64{1, 1})
	step, err = session.Recv()
	fatal(t, err)
	same(t, "number", step.Number, uint64(4))
	same(t, "row steps", step.RowSteps, []int64{1, 1})

	same(t, "enough", server.requests[0].(*pb.DriveEnvironmentsRequest).GetSpec().GetMinReadyRowCount(), uint64(2))
	actions := server.requests[1].(*pb.DriveEnvironmentsRequest).GetActions()
	same(t, "rows", actions.GetRows(), []int64{3, 2})
	same(t, "row steps", actions.GetRowStepCounts(), []int64{0, 0})
	for i := 1; i <= 2; i++ {
		same(t, "actions again", proto.Equal(server.requests[3+i], server.requests[i]), true)
	}
}

func TestActionsOfAnotherFormAreRefusedAndTheSessionGoesOn(t *testing.T) {
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{
			{drivenBeginning(2), drivenStep(0, firstRows(1, 2))}, {drivenStep(1, firstRows(3, 4))},
		},
	}}
	session, err := server.connect(t, rollserve.Config{}).Drive(context.Background(), nil)
	fatal(t, err)
	defer session.Close()
	changed := func(name string, array rollserve.Array) rollserve.Columns {
		actions := act(0, 1)
		actions[name] = array
		return actions
	}
	for _, wrong := range []struct {
		actions rollserve.Columns
		options *rollserve.StepOptions
		field   string
	}{
		{act(0), nil, "actions['flags']"},
		{changed("gear", rollserve.NewArray([]int32{0, 1})), nil, "actions['gear']"},
		{changed("flags", rollserve.NewArray([]int8{0, 1})), nil, "actions['flags']"},
		{changed("speed", rollserve.NewArray([]int8{0, 1})), nil, "actions"},
		{rollserve.Columns{"flags": rollserve.NewArray(make([]int8, 4), 2, 2)}, nil, "actions"},
		{act(0, 1), &rollserve.StepOptions{Idle: []bool{true}}, "Idle"},
		{act(0, 1), &rollserve.StepOptions{AgentInfos: act(0, 1)}, "AgentInfos"},
	} {
		_, err := session.Step(wrong.actions, wrong.options)
		isInvalid(t, err, wrong.field)
	}
	step, err := session.Step(act(0, 1), nil)
	fatal(t, err)
	same(t, "number", step.Number, uint64(1))
	same(t, "requests", len(server.requests), 2)
}

func TestSessionThatHasFailedStaysSo(t *testing.T) {
	field := "actions.actions['gear'][0]"
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{{drivenBeginning(2), drivenStep(0, firstRows(1, 2))}},
		err:   failure(codes.InvalidArgument, "INVALID_VALUE", field),
	}}
	session, err := server.connect(t, rollserve.Config{}).Drive(context.Background(), nil)
	fatal(t, err)
	defer session.Close()
	_, err = session.Step(act(9, 9), nil)
	isInvalid(t, err, field)
	_, err = session.Observe()
	isInvalid(t, err, field)
	_, err = session.Step(act(0, 0), nil)
	isInvalid(t, err, field)
	_, err = session.Batch()
	isInvalid(t, err, field)
	_, err = session.End()
	isInvalid(t, err, field)
	_, err = session.Account()
	isInvalid(t, err, field)
}

func TestSessionEndsWithItsContextItsTimeoutAndClose(t *testing.T) {
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err() // as the client's own clock would say, which can be later
	}
	server := &script{driven: driven{
		turns: [][]*pb.DriveEnvironmentsResponse{{drivenBeginning(2), drivenStep(0, firstRows(1, 2))}}, err: wait,
	}}
	sampler := server.connect(t, rollserve.Config{})
	step := func(ctx context.Context, timeout time.Duration, closeAfter time.Duration) error {
		session, err := sampler.Drive(ctx, &rollserve.DriveOptions{Timeout: timeout})
		fatal(t, err)
		defer session.Close()
		if _, err := session.Observe(); err != nil {
			return err
		}
		defer time.AfterFunc(closeAfter, session.Close).Stop()
		_, err = session.Step(act(0, 0), nil)
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	same(t, "cancelled", errors.Is(step(ctx, time.Minute, time.Minute), context.Canceled), true)
	ctx, cancel = context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	same(t, "deadline", errors.Is(step(ctx, time.Minute, time.Minute), rollserve.ErrDeadline), true)
	err := step(context.Background(), 200*time.Millisecond, time.Minute)
	same(t, "silence", rollserve.ReasonOf(err), rollserve.ReasonNoProgress)
	err = step(context.Background(), time.Minute, 50*time.Millisecond)
	same(t, "closed", errors.Is(err, rollserve.ErrCancelled), true)
}

func TestMalformedStepsAreErrorsOfTheServer(t *testing.T) {
	changed := func(change func(*pb.DrivenRows)) *pb.DrivenRows {
		rows := firstRows(1, 2)
		change(rows)
		return rows
	}
	for text, rows := range map[string]*pb.DrivenRows{
		"workers: expected 2 rows in all":    firstRows(1),
		"workers[0].episode_indices":         firstRows(1, 2, 3),
		"workers[0].rewards":                 changed(func(r *pb.DrivenRows) { r.Rewards = []float64{1} }),
		"workers[0].environment_seeds":       changed(func(r *pb.DrivenRows) { r.EnvironmentSeeds = nil }),
		"workers[0].ended_rows: expected as": changed(func(r *pb.DrivenRows) { r.EndedRows = []int64{0} }),
		"workers[0].ended_rows[0]": changed(func(r *pb.DrivenRows) {
			r.EndedRows, r.Terminated, r.Truncated = []int64{2}, []bool{true}, []bool{true}
		}),
		`workers[0].observations[""]`: changed(func(r *pb.DrivenRows) {
			r.Observations = column("", tensor(int64s, []int64{1}, 1))
		}),
	} {
		server := &script{driven: driven{
			turns: [][]*pb.DriveEnvironmentsResponse{{drivenBeginning(2), drivenStep(0, rows)}},
		}}
		session, err := server.connect(t, rollserve.Config{}).Drive(context.Background(), nil)
		fatal(t, err)
		_, err = session.Observe()
		isServerError(t, err, text)
		session.Close()
	}
}
