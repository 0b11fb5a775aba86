package rollserve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// Examples without an output are compiled only: they need a server.

func Example() {
	ctx := context.Background()
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
	env, err := sampler.UpdateEnv(ctx, rollserve.EnvSpec{ID: "CartPole-v1"})
	if err != nil {
		log.Fatal(err)
	}
	random := rand.New(rand.NewSource(0))
	agent, err := rollserve.InitialMLP(env.ObservationSpace, env.ActionSpace, []int{64, 64}, random)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sampler.UpdateAgent(ctx, agent, nil); err != nil {
		log.Fatal(err)
	}
	batch, err := sampler.ObtainSamples(ctx, 10_000, nil)
	if err != nil {
		log.Fatal(err)
	}
	observations, err := rollserve.Values[float32](batch.Observations[""])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(observations), batch.Returns(), batch.Account.NumSteps)
}

func ExampleStream() {
	ctx := context.Background()
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
	stream, err := sampler.StreamSamples(ctx, 10_000, &rollserve.SamplingOptions{Seed: rollserve.Some(uint64(7))})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()
	for {
		part, err := stream.Next()
		if err == io.EOF {
			break
		}
		if rollserve.ReasonOf(err) == rollserve.ReasonNoAgent {
			log.Fatal("send an agent first")
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(part.NumSteps())
	}
	account, err := stream.Account()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(account.NumSteps)
}

// Fragments are equally many steps of each row, for PPO: episodes continue from call to call.
func ExampleSampler_ObtainFragments() {
	ctx := context.Background()
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
	batch, err := sampler.ObtainFragments(ctx, 2_048, &rollserve.FragmentOptions{
		SamplingOptions: rollserve.SamplingOptions{ReturnLastValues: true, MaxEpisodeLength: 500},
		SoftHorizon:     true,
	})
	if err != nil {
		log.Fatal(err)
	}
	lastValues, err := rollserve.Values[float32](batch.LastValues)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(batch.Lengths, batch.Terminated, lastValues)
}

// A session acts in all rows from here, step by step, and the server records what happens.
func ExampleSession() {
	ctx := context.Background()
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
	session, err := sampler.Drive(ctx, &rollserve.DriveOptions{Seed: rollserve.Some(uint64(7))})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	step, err := session.Observe()
	for i := 0; err == nil && i < 128; i++ {
		actions := make([]int64, session.NumRows()) // of a policy that has seen step.Observations
		step, err = session.Step(rollserve.Columns{"": rollserve.NewArray(actions)}, nil)
	}
	if err != nil {
		log.Fatal(err)
	}
	batch, err := session.Batch()
	if err != nil {
		log.Fatal(err)
	}
	account, err := session.End()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(step.Number, batch.Lengths, account.NumSteps)
}

// An interceptor of gRPC sees each RPC, such as one that measures them.
func ExampleConfig_interceptors() {
	measure := func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		began := time.Now()
		err := invoker(ctx, method, request, reply, conn, options...)
		log.Println(method, time.Since(began), err)
		return err
	}
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(measure)},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
}

// Tests of programs make errors of any kind.
func ExampleError() {
	var err error = &rollserve.Error{Code: codes.FailedPrecondition, Reason: rollserve.ReasonNoAgent}
	fmt.Println(errors.Is(err, rollserve.ErrPrecondition), rollserve.ReasonOf(err))
	// Output: true NO_AGENT
}

// Array.Bytes and ArrayFromBytes move arrays of any type.
func ExampleArray_Bytes() {
	array := rollserve.NewArray([]int32{1, 2, 3, 4}, 2, 2)
	copied, err := rollserve.ArrayFromBytes(array.DataType, array.Shape, append([]byte{}, array.Bytes()...))
	if err != nil {
		log.Fatal(err)
	}
	values, err := rollserve.Values[int32](copied)
	fmt.Println(copied, values, err)
	// Output: int32 [2 2] [1 2 3 4] <nil>
}

func ExampleMultiAgentSampler() {
	ctx := context.Background()
	sampler, err := rollserve.Connect("127.0.0.1:50051", rollserve.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer sampler.Close()
	spec := rollserve.EnvSpec{ID: "classic/connect_four-v3", MultiAgent: rollserve.MultiAgentAEC}
	if _, err := sampler.UpdateEnv(ctx, spec); err != nil {
		log.Fatal(err)
	}
	agent := rollserve.RandomAgent{ActionMask: rollserve.ActionMask{Observation: "action_mask"}}
	_, err = sampler.UpdateAgent(ctx, rollserve.Policies{
		Updates: map[string]rollserve.AgentUpdate{"main": agent, "other": agent},
		Map: rollserve.PolicyMap{
			rollserve.ForAgent("player_0", rollserve.PolicyChoice{Policy: "main"}),
			rollserve.ForPrefix("", rollserve.PolicyChoice{Policy: "other"}),
		},
	}, nil)
	if err != nil {
		log.Fatal(err)
	}
	options := &rollserve.SamplingOptions{Deliver: []string{"main"}}
	batch, err := sampler.MultiAgent().ObtainSamples(ctx, 10_000, options)
	if err != nil {
		log.Fatal(err)
	}
	policies, err := batch.ByPolicy()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(batch.NumSteps(), policies["main"].EpisodeReturns())
}
