package rollserve_test

import (
	"context"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// notInAccounts are fields of accounts that belong to options which this client does not have.
var notInAccounts = []string{
	"shared_message_bytes", "observation_moments", "return_moments", "policy_moments", "round_count", "stale_step_count",
	"overflow_step_count", "unsent_step_count", "lag_step_counts", "worker_idle", "update_waiting", "client_waiting",
}

func TestResultsShowAllFieldsOfTheirMessages(t *testing.T) {
	server, ctx := &script{}, context.Background()
	sampler := server.connect(t, rollserve.Config{})
	answer := func(message proto.Message) { // the next call
		server.answers, server.calls = append(server.answers, message), append(server.calls, scripted{})
	}
	showsFields(t, &pb.GetSamplerResponse{}, []string{"quota", "scaling", "text_info_bytes"},
		func(message *pb.GetSamplerResponse) (any, error) {
			answer(message)
			return sampler.Status(ctx)
		})
	showsFields(t, &pb.UpdateEnvResponse{}, []string{"has_transforms"}, func(message *pb.UpdateEnvResponse) (any, error) {
		answer(message)
		return sampler.UpdateEnv(ctx, rollserve.EnvSpec{ID: "any"})
	})
	showsFields(t, &pb.Account{}, notInAccounts, func(message *pb.Account) (any, error) {
		answer(nil)
		last := &pb.ObtainSamplesResponse{Content: &pb.ObtainSamplesResponse_Account{Account: message}}
		server.calls[len(server.calls)-1].responses = []*pb.ObtainSamplesResponse{beginning(), last}
		stream, err := sampler.StreamSamples(ctx, 1, nil)
		fatal(t, err)
		defer stream.Close()
		_, err = stream.Next()
		same(t, "end", err, io.EOF)
		return stream.Account()
	})
	showsFields(t, &pb.Evaluation{}, notInAccounts, func(message *pb.Evaluation) (any, error) {
		answer(message)
		return sampler.Evaluate(ctx, 1, nil)
	})
	showsFields(t, &pb.PopulationEvaluation{MemberCount: 1, EpisodeCount: 1}, notInAccounts,
		func(message *pb.PopulationEvaluation) (any, error) {
			answer(message)
			return sampler.EvaluatePopulation(ctx, rollserve.Parameters{}, 1, nil)
		})
}

// showsFields fails the test unless each field that a message can have makes a difference to the result.
func showsFields[M proto.Message](t *testing.T, message M, except []string, result func(M) (any, error)) {
	t.Helper()
	fill(message.ProtoReflect())
	whole, err := result(message)
	fatal(t, err)
	eachField(message.ProtoReflect(), except, func(path string, isListed bool) {
		if without, err := result(message); err == nil && reflect.DeepEqual(whole, without) != isListed {
			t.Errorf("%s of %s: shown: %v, listed as not shown: %v", path, message.ProtoReflect().Descriptor().Name(),
				!isListed, isListed)
		}
	})
}

// eachField visits the fields of a message and of those in it, each while the message lacks it.
func eachField(message protoreflect.Message, except []string, visit func(path string, isListed bool)) {
	whole := proto.Clone(message.Interface())
	for i := 0; i < message.Descriptor().Fields().Len(); i++ {
		field, isListed := message.Descriptor().Fields().Get(i), false
		if !message.Has(field) {
			continue // another one of its oneof is there
		}
		for _, name := range except {
			isListed = isListed || name == string(field.Name())
		}
		message.Clear(field)
		visit(string(field.Name()), isListed)
		proto.Reset(message.Interface())
		proto.Merge(message.Interface(), whole)
		within := func(path string, isListed bool) { visit(string(field.Name())+"."+path, isListed) }
		switch {
		case isListed || field.IsMap() || field.Message() == nil || field.Message().Name() == "Tensor":
		case field.IsList():
			eachField(message.Get(field).List().Get(0).Message(), except, within)
		default:
			eachField(message.Get(field).Message(), except, within)
		}
	}
}

// fill sets all fields of a message, of each oneof the first one, and one element of lists and maps.
func fill(message protoreflect.Message) {
	fields := message.Descriptor().Fields()
	for i := 0; i < fields.Len(); i++ {
		field := fields.Get(i)
		oneof := field.ContainingOneof()
		switch {
		case message.Has(field) || oneof != nil && !oneof.IsSynthetic() && message.WhichOneof(oneof) != nil:
		case field.IsList():
			list := message.Mutable(field).List()
			list.Append(filled(field, list.NewElement))
		case field.IsMap():
			entries := message.Mutable(field).Map()
			entries.Set(protoreflect.ValueOfString("name").MapKey(), filled(field.MapValue(), entries.NewValue))
		default:
			message.Set(field, filled(field, func() protoreflect.Value { return message.NewField(field) }))
		}
	}
}

func filled(field protoreflect.FieldDescriptor, create func() protoreflect.Value) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.MessageKind:
		value := create()
		if tensorMessage, ok := value.Message().Interface().(*pb.Tensor); ok {
			proto.Merge(tensorMessage, tensor(float32s, float32(0.5)))
		} else {
			fill(value.Message())
		}
		return value
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.StringKind:
		if strings.HasSuffix(string(field.Name()), "_json") {
			return protoreflect.ValueOfString(`{"name": 1}`)
		}
		return protoreflect.ValueOfString("text")
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(0.5)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(3)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(3)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(3)
	default:
		return protoreflect.ValueOfUint64(3)
	}
}

func TestStatusHasTheEnvironmentThatWasSent(t *testing.T) {
	half := 0.5
	spec := rollserve.EnvSpec{
		ID: "CartPole-v1", Kwargs: map[string]any{"level": 2.0}, NumRows: 4, NumEpisodesPerRow: 3, GlobalState: true,
		Wrappers: []rollserve.Wrapper{{Name: "TimeLimit", Kwargs: map[string]any{"max_episode_steps": 5.0}}},
		Transforms: []rollserve.Transform{
			rollserve.SignRewards{}, rollserve.ClipRewards{High: &half}, rollserve.ScaleRewards{Factor: 2, Offset: 1},
			rollserve.RescaleActions{Low: &half}, rollserve.ClipActions{},
			rollserve.CastObservations{DataType: rollserve.Float64, Leaves: []string{"a"}},
			rollserve.ScaleObservations{Factor: 2, Offset: 1, Leaves: []string{"a"}},
			rollserve.RescaleObservations{Low: 1, High: 2, Leaves: []string{"a"}},
			rollserve.CropObservations{Top: 1, Left: 2, Height: 3, Width: 4, ChannelsFirst: true, Leaves: []string{"a"}},
			rollserve.ResizeObservations{Height: 3, Width: 4, ChannelsFirst: true, Leaves: []string{"a"}},
			rollserve.GrayscaleObservations{KeepChannel: true, ChannelsFirst: true, Leaves: []string{"a"}},
			rollserve.FlattenObservations{Leaves: []string{"a"}},
		},
		Task: &rollserve.Task{Method: "set_task", Argument: "hard"}, ResetOptions: map[string]any{"start": "left"},
		Vectorization: rollserve.VectorizationNative, MultiAgent: rollserve.MultiAgentAEC,
	}
	server := &script{answers: []proto.Message{&pb.UpdateEnvResponse{}, nil}}
	sampler := server.connect(t, rollserve.Config{})
	_, err := sampler.UpdateEnv(context.Background(), spec)
	fatal(t, err)
	sent := server.requests[0].(*pb.UpdateEnvRequest).GetAllWorkers().GetEnvironment()
	server.answers[1] = &pb.GetSamplerResponse{Environments: []*pb.Environment{sent}}
	status, err := sampler.Status(context.Background())
	fatal(t, err)
	same(t, "environments", status.Envs, []rollserve.EnvSpec{spec})

	for field, wrong := range map[string]rollserve.EnvSpec{
		"Vectorization":     {Vectorization: "columns"},
		"MultiAgent":        {MultiAgent: "serial"},
		"NumRows":           {NumRows: -1},
		"NumEpisodesPerRow": {NumEpisodesPerRow: 1 << 40},
		"Transforms[0]":     {Transforms: []rollserve.Transform{nil}},
	} {
		_, err := sampler.UpdateEnv(context.Background(), wrong)
		isInvalid(t, err, field)
	}
}

func TestStatusHasWorkersAndTimes(t *testing.T) {
	message := &pb.GetSamplerResponse{Workers: []*pb.Worker{
		{Health: pb.WorkerHealth_WORKER_HEALTH_LOST}, {Health: pb.WorkerHealth_WORKER_HEALTH_LEAVING}, {Health: 99},
	}}
	status, err := (&script{answers: []proto.Message{message}}).connect(t, rollserve.Config{}).Status(context.Background())
	fatal(t, err)
	same(t, "workers", status.NumWorkers(), 2)
	same(t, "health", status.Workers[0].Health, rollserve.WorkerLost)
	same(t, "unknown", status.Workers[2].Health, rollserve.WorkerHealth(""))
	same(t, "lease", []any{status.Lease, status.Counters.Uptime}, []any{time.Duration(0), time.Duration(0)})
}

func TestSpacesOfAllKindsAreRead(t *testing.T) {
	bound, counts := tensor(float32s, float32(1)), tensor(int64s, []int64{2, 3}, 2)
	leaves := []*pb.Space{
		{Kind: &pb.Space_Box{Box: &pb.BoxSpace{DataType: float32s, Shape: []int64{2, 2}, Low: bound, High: bound}}},
		{Kind: &pb.Space_Discrete{Discrete: &pb.DiscreteSpace{N: 4, Start: -1}}},
		{Kind: &pb.Space_MultiDiscrete{MultiDiscrete: &pb.MultiDiscreteSpace{DataType: int64s, Nvec: counts, Start: counts}}},
		{Kind: &pb.Space_MultiBinary{MultiBinary: &pb.MultiBinarySpace{Shape: []int64{7}}}},
	}
	named := []*pb.NamedSpace{{Name: "a", Space: &pb.Space{Kind: &pb.Space_Tuple{Tuple: &pb.TupleSpace{Spaces: leaves}}}}}
	message := &pb.UpdateEnvResponse{
		ObservationSpace: &pb.Space{Kind: &pb.Space_Dict{Dict: &pb.DictSpace{Spaces: named}}},
		ActionSpace:      &pb.Space{Kind: &pb.Space_Text{Text: &pb.TextSpace{MaxLength: 5, MinLength: 1, Characters: "ab"}}},
	}
	later, broken := &pb.UpdateEnvResponse{}, proto.Clone(message).(*pb.UpdateEnvResponse)
	broken.ObservationSpace.GetDict().Spaces[0].Space.GetTuple().Spaces[0].GetBox().Low.Data = nil
	sampler := (&script{answers: []proto.Message{message, later, broken}}).connect(t, rollserve.Config{})
	update := func() (*rollserve.EnvUpdated, error) {
		return sampler.UpdateEnv(context.Background(), rollserve.EnvSpec{ID: "any"})
	}
	updated, err := update()
	fatal(t, err)
	of := updated.ObservationSpace.(rollserve.DictSpace)[0].Space.(rollserve.TupleSpace)
	box := of[0].(rollserve.BoxSpace)
	same(t, "box", []any{box.DataType, box.Shape}, []any{rollserve.Float32, []int{2, 2}})
	same(t, "bound", values[float32](t, box.High), []float32{1})
	same(t, "discrete", of[1], rollserve.DiscreteSpace{N: 4, Start: -1})
	same(t, "multi discrete", values[int64](t, of[2].(rollserve.MultiDiscreteSpace).N), []int64{2, 3})
	same(t, "multi binary", of[3], rollserve.MultiBinarySpace{Shape: []int{7}})
	same(t, "text", updated.ActionSpace, rollserve.TextSpace{MaxLength: 5, MinLength: 1, Characters: "ab"})
	size, err := rollserve.FlatSize(updated.ObservationSpace)
	fatal(t, err)
	same(t, "size", size, 4+4+5+7)
	_, err = rollserve.FlatSize(updated.ActionSpace)
	isInvalid(t, err, "space")

	updated, err = update()
	fatal(t, err)
	same(t, "kind of a later version", updated.ObservationSpace, nil)
	_, err = rollserve.FlatSize(updated.ObservationSpace)
	isInvalid(t, err, "space")
	_, err = update()
	isServerError(t, err, `observation_space.spaces["a"].spaces[0].low.data: expected 4 bytes`)
}

func TestEvaluationsOfManyAgentsAreSplit(t *testing.T) {
	message := &pb.Evaluation{
		Returns: []float64{3, 5}, Lengths: []uint64{7, 8}, ReturnSummary: &pb.Summary{Mean: 4},
		AgentReturns: &pb.AgentReturns{
			Agents:          []string{"red", "blue"},
			Policies:        []*pb.PolicyVersion{{Policy: "a", Version: 1}, {Policy: "b", Version: 2}},
			Returns:         []float64{1, 2, 5, math.NaN()},
			PolicyPositions: []int32{0, 0, 1, -1},
		},
	}
	short := proto.Clone(message).(*pb.Evaluation)
	short.AgentReturns.PolicyPositions = nil
	sampler := (&script{answers: []proto.Message{message, short}}).connect(t, rollserve.Config{})
	evaluation, err := sampler.Evaluate(context.Background(), 2, nil)
	fatal(t, err)
	same(t, "lengths", evaluation.Lengths, []int{7, 8})
	same(t, "mean", evaluation.ReturnSummary.Mean, 4.0)
	same(t, "not told", math.IsNaN(evaluation.ReturnSummary.ConfidenceLow), true)
	same(t, "by agent", evaluation.AgentReturns.ByAgent(), map[string][]float64{"red": {1, 5}, "blue": {2}})
	a, b := rollserve.PolicyVersion{Policy: "a", Version: 1}, rollserve.PolicyVersion{Policy: "b", Version: 2}
	same(t, "by policy", evaluation.AgentReturns.ByPolicy(), map[rollserve.PolicyVersion][]float64{a: {1.5}, b: {5}})
	_, err = sampler.Evaluate(context.Background(), 2, nil)
	isServerError(t, err, "agent_returns: expected 4 values")
	_, err = sampler.Evaluate(context.Background(), -1, nil)
	isInvalid(t, err, "numEpisodes")
}
