package rollserve_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/runtime/protoimpl"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// script is a server on a real connection whose streams send what the test says: one list of responses for each call,
// and the error that the call ends with.
type script struct {
	pb.UnimplementedSamplerServiceServer
	calls   []scripted
	answers []proto.Message // of calls with a single answer, and the content of evaluations
	driven  driven

	mutex    sync.Mutex
	requests []proto.Message
	metadata []metadata.MD
}

type scripted struct {
	responses []*pb.ObtainSamplesResponse
	err       func(context.Context) error
}

// connect starts the server, and returns a sampler that is connected to it.
func (s *script) connect(t *testing.T, config rollserve.Config) *rollserve.Sampler {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	server := grpc.NewServer()
	pb.RegisterSamplerServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	sampler, err := rollserve.Connect(listener.Addr().String(), config)
	fatal(t, err)
	t.Cleanup(func() { _ = sampler.Close() })
	return sampler
}

func (s *script) record(ctx context.Context, request proto.Message) int {
	received, _ := metadata.FromIncomingContext(ctx)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.requests, s.metadata = append(s.requests, request), append(s.metadata, received)
	return len(s.requests) - 1
}

func (s *script) ObtainSamples(
	request *pb.ObtainSamplesRequest, stream pb.SamplerService_ObtainSamplesServer,
) error {
	call := s.calls[s.record(stream.Context(), request)]
	for _, response := range call.responses {
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	if call.err == nil {
		return nil
	}
	return call.err(stream.Context())
}

func (s *script) ObtainExactEpisodes(
	request *pb.ObtainExactEpisodesRequest, stream pb.SamplerService_ObtainExactEpisodesServer,
) error {
	call := s.calls[s.record(stream.Context(), request)]
	for _, response := range call.responses {
		serialized, err := proto.Marshal(response)
		if err != nil {
			return err
		}
		same := &pb.ObtainExactEpisodesResponse{}
		if err := proto.Unmarshal(serialized, same); err != nil {
			return err
		}
		if err := stream.Send(same); err != nil {
			return err
		}
	}
	if call.err == nil {
		return nil
	}
	return call.err(stream.Context())
}

func (s *script) UpdateAgent(ctx context.Context, request *pb.UpdateAgentRequest) (*pb.UpdateAgentResponse, error) {
	s.record(ctx, request)
	return &pb.UpdateAgentResponse{PolicyVersion: 7, EnvironmentVersion: 3}, nil
}

func (s *script) UpdateEnv(ctx context.Context, request *pb.UpdateEnvRequest) (*pb.UpdateEnvResponse, error) {
	return s.answers[s.record(ctx, request)].(*pb.UpdateEnvResponse), nil
}

func (s *script) GetSampler(ctx context.Context, request *pb.GetSamplerRequest) (*pb.GetSamplerResponse, error) {
	return s.answers[s.record(ctx, request)].(*pb.GetSamplerResponse), nil
}

func (s *script) Evaluate(request *pb.EvaluateRequest, stream pb.SamplerService_EvaluateServer) error {
	evaluation := s.answers[s.record(stream.Context(), request)].(*pb.Evaluation)
	return stream.Send(&pb.EvaluateResponse{Content: &pb.EvaluateResponse_Evaluation{Evaluation: evaluation}})
}

func (s *script) EvaluatePopulation(
	request *pb.EvaluatePopulationRequest, stream pb.SamplerService_EvaluatePopulationServer,
) error {
	evaluation := s.answers[s.record(stream.Context(), request)].(*pb.PopulationEvaluation)
	return stream.Send(&pb.EvaluatePopulationResponse{
		Content: &pb.EvaluatePopulationResponse_Evaluation{Evaluation: evaluation},
	})
}

// failure returns an error with a reason, a field and a request id, in the form of the server.
func failure(code codes.Code, reason, field string) func(context.Context) error {
	return func(ctx context.Context) error {
		trailer := metadata.Pairs("rollserve-reason", reason, "rollserve-request-id", "0123456789abcdef")
		if err := grpc.SetTrailer(ctx, trailer); err != nil {
			return err
		}
		violation := text(1, string(append(text(1, field), text(2, "description")...)))
		packed := append(text(1, "type.googleapis.com/google.rpc.BadRequest"), text(2, string(violation))...)
		serialized := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(code))
		serialized = append(serialized, text(2, "it failed")...)
		serialized = append(serialized, text(3, string(packed))...)
		failed := status.New(code, "").Proto()
		if err := proto.Unmarshal(serialized, protoimpl.X.ProtoMessageV2Of(failed)); err != nil {
			return err
		}
		return status.ErrorProto(failed)
	}
}

func text(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// segments returns a batch of one-step observations that count from the first step of each segment: segment is episode,
// first step, length, and whether the episode ends.
func segments(list ...[4]int) *pb.EpisodeBatch {
	batch := &pb.EpisodeBatch{}
	var observations, last []float32
	var actions []int64
	var rewards []float64
	for _, segment := range list {
		episode, first, length := segment[0], segment[1], segment[2]
		batch.EpisodeIndices = append(batch.EpisodeIndices, uint64(episode))
		batch.FirstSteps = append(batch.FirstSteps, uint64(first))
		batch.Lengths = append(batch.Lengths, uint32(length))
		batch.Terminated = append(batch.Terminated, segment[3] == 1)
		batch.Truncated = append(batch.Truncated, false)
		batch.PolicyVersions = append(batch.PolicyVersions, 1)
		batch.EnvironmentSeeds = append(batch.EnvironmentSeeds, uint32(1000+episode))
		for step := first; step < first+length; step++ {
			observations = append(observations, float32(100*episode+step))
			actions = append(actions, int64(step))
			rewards = append(rewards, float64(step))
		}
		last = append(last, float32(100*episode+first+length))
	}
	batch.Observations = column("", tensor(float32s, observations, len(observations), 1))
	batch.LastObservations = column("", tensor(float32s, last, len(last), 1))
	batch.Actions = column("", tensor(int64s, actions, len(actions)))
	batch.Rewards = tensor(float64s, rewards, len(rewards))
	return batch
}

func column(name string, tensor *pb.Tensor) []*pb.NamedTensor {
	return []*pb.NamedTensor{{Name: name, Tensor: tensor}}
}

// The types of tensors in tests.
const (
	bools    = pb.DataType_DATA_TYPE_BOOL
	int8s    = pb.DataType_DATA_TYPE_INT8
	int64s   = pb.DataType_DATA_TYPE_INT64
	uint8s   = pb.DataType_DATA_TYPE_UINT8
	halves   = pb.DataType_DATA_TYPE_FLOAT16
	float32s = pb.DataType_DATA_TYPE_FLOAT32
	float64s = pb.DataType_DATA_TYPE_FLOAT64
)

// tensor writes values as the wire has them, without this package.
func tensor(dataType pb.DataType, values any, shape ...int) *pb.Tensor {
	var data bytes.Buffer
	if err := binary.Write(&data, binary.LittleEndian, values); err != nil {
		panic(err)
	}
	sizes := make([]int64, len(shape))
	for i, size := range shape {
		sizes[i] = int64(size)
	}
	return &pb.Tensor{DataType: dataType, Shape: sizes, Data: data.Bytes()}
}

func beginning() *pb.ObtainSamplesResponse {
	return &pb.ObtainSamplesResponse{Content: &pb.ObtainSamplesResponse_Beginning{Beginning: &pb.Beginning{
		Seed: 1 << 63, FirstEpisodeIndex: 4, PolicyVersion: 1, EnvironmentVersion: 2, SamplerRun: "run", WorkerCount: 3,
		Reproducibility: pb.Reproducibility_REPRODUCIBILITY_EPISODE,
	}}}
}

func batchOf(batch *pb.EpisodeBatch) *pb.ObtainSamplesResponse {
	return &pb.ObtainSamplesResponse{Content: &pb.ObtainSamplesResponse_Batch{Batch: batch}}
}

func account(numEpisodes, numSteps int) *pb.ObtainSamplesResponse {
	return &pb.ObtainSamplesResponse{Content: &pb.ObtainSamplesResponse_Account{Account: &pb.Account{
		EpisodeCount: uint64(numEpisodes), StepCount: uint64(numSteps),
	}}}
}

// obtain returns what a call makes of messages, with a beginning before and an account behind them.
func obtain(t *testing.T, numEpisodes, numSteps int, batches ...*pb.EpisodeBatch) (*rollserve.EpisodeBatch, error) {
	t.Helper()
	responses := []*pb.ObtainSamplesResponse{beginning()}
	for _, batch := range batches {
		responses = append(responses, batchOf(batch))
	}
	server := &script{calls: []scripted{{responses: append(responses, account(numEpisodes, numSteps))}}}
	return server.connect(t, rollserve.Config{}).ObtainSamples(context.Background(), numSteps, nil)
}

func values[T rollserve.Element](t *testing.T, array rollserve.Array) []T {
	t.Helper()
	values, err := rollserve.Values[T](array)
	fatal(t, err)
	return values
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, name string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", name, got, want)
	}
}

// isInvalid fails the test unless an error is an ErrInvalidArgument of a field.
func isInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var known *rollserve.Error
	if !errors.As(err, &known) || !errors.Is(err, rollserve.ErrInvalidArgument) || known.Field != field {
		t.Errorf("got %v, want an ErrInvalidArgument of field %s", err, field)
	}
}

// isServerError fails the test unless an error is an ErrServer with a text.
func isServerError(t *testing.T, err error, text string) {
	t.Helper()
	if !errors.Is(err, rollserve.ErrServer) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want an ErrServer with %q", err, text)
	}
}

func joinedResponse(t *testing.T, responses ...*pb.ObtainSamplesResponse) *pb.ObtainSamplesResponse {
	t.Helper()
	joined := &pb.JoinedResponses{}
	for _, response := range responses {
		serialized, err := proto.Marshal(response)
		fatal(t, err)
		joined.Responses = append(joined.Responses, serialized)
	}
	return &pb.ObtainSamplesResponse{Content: &pb.ObtainSamplesResponse_Joined{Joined: joined}}
}

// oneStep is a call that delivers one episode of one step.
func oneStep() scripted {
	return scripted{responses: []*pb.ObtainSamplesResponse{
		beginning(), batchOf(segments([4]int{4, 0, 1, 1})), account(1, 1),
	}}
}
