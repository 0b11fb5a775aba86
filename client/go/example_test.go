package rollserve_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand"

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
