// Command reinforce learns CartPole-v1 with REINFORCE from outside: `reinforce HOST:PORT`.
//
// The server has the environments and records the steps; the policy, which is linear, acts here, in a session. The exit
// status is 0 if the mean return of 50 episodes reaches 195, 1 if it does not, and 3 if the server cannot be used.
package main

import (
	"context"
	"fmt"
	"math"
	"math/rand"
	"os"
	"time"

	rollserve "github.com/rollserve/rollserve/client/go"
)

const (
	env            = "CartPole-v1"
	solvedReturn   = 195.0
	numAveraged    = 50
	fragmentLength = 128
	maxIterations  = 100

	discount     = 0.98
	learningRate = 30.0
)

func main() {
	target := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	began := time.Now()
	meanReturn, account, err := train(context.Background(), target)
	if err != nil {
		fmt.Fprintln(os.Stderr, "reinforce:", err)
		os.Exit(3)
	}
	fmt.Printf("reinforce: %s mean return %.1f over the last %d episodes, %d steps in %.1f s\n",
		env, meanReturn, numAveraged, account.NumSteps, time.Since(began).Seconds())
	if meanReturn < solvedReturn {
		os.Exit(1)
	}
}

// train returns the mean return of the last episodes, and the account of the session.
func train(ctx context.Context, target string) (meanReturn float64, account *rollserve.Account, err error) {
	sampler, err := rollserve.Connect(target, rollserve.Config{})
	if err != nil {
		return 0, nil, err
	}
	defer sampler.Close()
	if _, err := sampler.UpdateEnv(ctx, rollserve.EnvSpec{ID: env}); err != nil {
		return 0, nil, err
	}
	session, err := sampler.Drive(ctx, &rollserve.DriveOptions{
		Seed:           rollserve.Some(uint64(0)),
		FragmentLength: fragmentLength,
		AgentInfos:     map[string]rollserve.Array{"probability": rollserve.Scalar(0.0)},
	})
	if err != nil {
		return 0, nil, err
	}
	defer session.Close()

	policy := &policy{random: rand.New(rand.NewSource(0))}
	var returns []float64
	for iteration := 1; iteration <= maxIterations && meanReturn < solvedReturn; iteration++ {
		if err := act(session, policy); err != nil {
			return 0, nil, err
		}
		batch, err := session.Batch() // what the server has recorded of it
		if err != nil {
			return 0, nil, err
		}
		if err := policy.learn(batch); err != nil {
			return 0, nil, err
		}
		for segment, sum := range batch.EpisodeReturns() {
			if batch.Ended(segment) {
				returns = append(returns, sum)
			}
		}
		if len(returns) >= numAveraged {
			meanReturn = mean(returns[len(returns)-numAveraged:])
		}
		fmt.Printf("iteration %3d: mean return %5.1f\n", iteration, meanReturn)
	}
	account, err = session.End()
	return meanReturn, account, err
}

// act makes the steps of a fragment.
func act(session *rollserve.Session, policy *policy) error {
	step, err := session.Observe()
	for i := 0; err == nil && i < fragmentLength; i++ {
		var observations []float32
		if observations, err = rollserve.Values[float32](step.Observations[""]); err != nil {
			break
		}
		actions, probabilities := policy.act(observations)
		step, err = session.Step(rollserve.Columns{"": rollserve.NewArray(actions)}, &rollserve.StepOptions{
			AgentInfos: rollserve.Columns{"probability": rollserve.NewArray(probabilities)},
		})
	}
	return err
}

// numFeatures is the size of an observation.
const numFeatures = 4

// policy pushes to the right with a probability whose logit is linear in the observation.
type policy struct {
	weights [numFeatures]float64
	random  *rand.Rand
}

// act returns an action for each row, and the probability of 1.
func (p *policy) act(observations []float32) (actions []int64, probabilities []float64) {
	for ; len(observations) > 0; observations = observations[numFeatures:] {
		logit := 0.0
		for i, weight := range p.weights {
			logit += weight * float64(observations[i])
		}
		probability, action := 1/(1+math.Exp(-logit)), int64(0)
		if p.random.Float64() < probability {
			action = 1
		}
		actions, probabilities = append(actions, action), append(probabilities, probability)
	}
	return actions, probabilities
}

// learn improves the policy by the policy gradient of a batch.
func (p *policy) learn(batch *rollserve.EpisodeBatch) error {
	observations, err := rollserve.Values[float32](batch.Observations[""])
	if err != nil {
		return err
	}
	actions, err := rollserve.Values[int64](batch.Actions[""])
	if err != nil {
		return err
	}
	probabilities, err := rollserve.Values[float64](batch.AgentInfos["probability"])
	if err != nil {
		return err
	}
	returns := discountedReturns(batch)
	average, variance := mean(returns), 0.0
	for _, each := range returns {
		variance += (each - average) * (each - average) / float64(len(returns))
	}
	rate := learningRate / float64(len(returns)) / (math.Sqrt(variance) + 1e-8)
	for step, each := range returns {
		for i := range p.weights {
			gradient := (float64(actions[step]) - probabilities[step]) * float64(observations[step*numFeatures+i])
			p.weights[i] += rate * (each - average) * gradient
		}
	}
	return nil
}

// discountedReturns returns the discounted sum of the rewards from each step on. An episode that has not terminated
// counts as one that goes on for ever.
func discountedReturns(batch *rollserve.EpisodeBatch) []float64 {
	returns, end := make([]float64, batch.NumSteps()), 0
	for segment, length := range batch.Lengths {
		end += length
		following := 1 / (1 - discount)
		if batch.Terminated[segment] {
			following = 0
		}
		for step := end - 1; step >= end-length; step-- {
			following = batch.Rewards[step] + discount*following
			returns[step] = following
		}
	}
	return returns
}

func mean(values []float64) float64 {
	total := 0.0
	for _, value := range values {
		total += value
	}
	return total / float64(len(values))
}
