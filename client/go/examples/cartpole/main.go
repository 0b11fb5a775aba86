// Command cartpole learns CartPole-v1 with PPO (https://arxiv.org/abs/1707.06347) through a server of Rollserve:
// `cartpole HOST:PORT`.
//
// The loop is in train; the networks, their gradients and Adam are in network.go. The exit status is 0 if the mean
// return of 100 new episodes reaches 475, 1 if it does not, and 3 if the server cannot be used.
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
	env               = "CartPole-v1"
	solvedReturn      = 475.0
	trainedReturn     = 490.0
	numEvaluated      = 100
	stepsPerIteration = 6144
	maxIterations     = 150

	discount, gaeLambda = 0.99, 0.95
	clip, entropyBonus  = 0.2, 0.01
	learningRate        = 2e-3
	numEpochs           = 6
	minibatchSize       = 512
)

func main() {
	target := "127.0.0.1:50051"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	began := time.Now()
	meanReturn, numSteps, err := train(context.Background(), target)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(3)
	}
	seconds := time.Since(began).Seconds()
	fmt.Printf("demo: %s mean return %.1f over %d episodes, %d steps in %.1f s, %.0f steps/s\n",
		env, meanReturn, numEvaluated, numSteps, seconds, float64(numSteps)/seconds)
	if meanReturn < solvedReturn {
		os.Exit(1)
	}
}

// train returns the mean return of the last evaluation, and the number of sampled steps, evaluations included.
func train(ctx context.Context, target string) (meanReturn float64, numSteps int, err error) {
	sampler, err := rollserve.Connect(target, rollserve.Config{})
	if err != nil {
		return 0, 0, err
	}
	defer sampler.Close()
	updated, err := sampler.UpdateEnv(ctx, rollserve.EnvSpec{ID: env})
	if err != nil {
		return 0, 0, err
	}
	random := rand.New(rand.NewSource(0))
	agent, err := rollserve.InitialMLP(updated.ObservationSpace, updated.ActionSpace, []int{32, 32}, random)
	if err != nil {
		return 0, 0, err
	}
	policy, err := networkOf(agent.Parameters)
	if err != nil {
		return 0, 0, err
	}
	value := newNetwork([]int{policy.layers[0].inputs, 32, 32, 1}, random)
	learner := &learner{policy: policy, value: value, random: random}

	// The first update sends the whole agent: its network, its head and its parameters.
	if _, err := sampler.UpdateAgent(ctx, agent, nil); err != nil {
		return 0, 0, err
	}
	for iteration := 1; iteration <= maxIterations; iteration++ {
		// Whole episodes of the current policy, with at least that many steps in all.
		batch, err := sampler.ObtainSamples(ctx, stepsPerIteration, nil)
		if err != nil {
			return 0, 0, err
		}
		numSteps += batch.NumSteps()
		sampled := mean(batch.Returns())
		fmt.Printf("iteration %3d: mean return %5.1f, %d steps\n", iteration, sampled, numSteps)
		if sampled >= trainedReturn {
			evaluation, err := sampler.Evaluate(ctx, numEvaluated, nil)
			if err != nil {
				return 0, 0, err
			}
			for _, length := range evaluation.Lengths {
				numSteps += length
			}
			if meanReturn = evaluation.ReturnSummary.Mean; meanReturn >= solvedReturn {
				return meanReturn, numSteps, nil
			}
		}
		rate := learningRate * (1 - float64(iteration)/(maxIterations+1))
		if err := learner.learn(batch, rate); err != nil {
			return 0, 0, err
		}
		// Later updates send the parameters alone. The agent's are those of the network, which has just changed them.
		if _, err := sampler.UpdateAgent(ctx, agent.Parameters, nil); err != nil {
			return 0, 0, err
		}
	}
	return meanReturn, numSteps, nil
}

// learner improves a policy and a value network by the clipped objective.
type learner struct {
	policy, value *network
	random        *rand.Rand
}

// learn makes some epochs over a batch of whole episodes, sampled with the current policy.
func (l *learner) learn(batch *rollserve.EpisodeBatch, rate float64) error {
	observations, err := rollserve.Values[float32](batch.Observations[""])
	if err != nil {
		return err
	}
	last, err := rollserve.Values[float32](batch.LastObservations[""])
	if err != nil {
		return err
	}
	actions, err := rollserve.Values[int64](batch.Actions[""])
	if err != nil {
		return err
	}
	logProbs, err := rollserve.Values[float32](batch.AgentInfos["log_prob"])
	if err != nil {
		return err
	}
	size := batch.Observations[""].RowSize()
	advantages, targets := l.estimate(batch, observations, last, size)
	for epoch := 0; epoch < numEpochs; epoch++ {
		order := l.random.Perm(batch.NumSteps())
		for len(order) > 0 {
			count := minibatchSize
			if len(order) < 2*count {
				count = len(order)
			}
			for _, step := range order[:count] {
				observation := observations[step*size : (step+1)*size]
				gradient := policyGradient(l.policy.forward(observation), actions[step], advantages[step], logProbs[step])
				l.policy.backward(gradient)
				l.value.backward([]float32{l.value.forward(observation)[0] - targets[step]})
			}
			l.policy.improve(rate, count)
			l.value.improve(rate, count)
			order = order[count:]
		}
	}
	return nil
}

// estimate returns normalized generalized advantage estimates, and the targets of the values, of each step.
func (l *learner) estimate(
	batch *rollserve.EpisodeBatch, observations, last []float32, size int,
) (advantages, targets []float32) {
	advantages = make([]float32, batch.NumSteps())
	targets = make([]float32, batch.NumSteps())
	begin := 0
	for segment, length := range batch.Lengths {
		nextValue, following := 0.0, 0.0
		if !batch.Terminated[segment] { // behind a limit, the value of the last observation counts
			nextValue = float64(l.value.forward(last[segment*size : (segment+1)*size])[0])
		}
		for step := begin + length - 1; step >= begin; step-- {
			value := float64(l.value.forward(observations[step*size : (step+1)*size])[0])
			following = batch.Rewards[step] + discount*nextValue - value + discount*gaeLambda*following
			advantages[step], targets[step] = float32(following), float32(following+value)
			nextValue = value
		}
		begin += length
	}
	total, squares := 0.0, 0.0
	for _, advantage := range advantages {
		total += float64(advantage)
		squares += float64(advantage) * float64(advantage)
	}
	average := total / float64(len(advantages))
	deviation := math.Sqrt(squares/float64(len(advantages)) - average*average)
	for step := range advantages {
		advantages[step] = float32((float64(advantages[step]) - average) / (deviation + 1e-8))
	}
	return advantages, targets
}

// policyGradient returns the gradient of the loss by the logits of one step.
func policyGradient(logits []float32, action int64, advantage, oldLogProb float32) []float32 {
	probs, total := make([]float64, len(logits)), 0.0
	for i, logit := range logits {
		probs[i] = math.Exp(float64(logit - logits[action]))
		total += probs[i]
	}
	entropy := 0.0
	for i := range probs {
		probs[i] /= total
		entropy -= probs[i] * math.Log(probs[i])
	}
	ratio := math.Exp(math.Log(probs[action]) - float64(oldLogProb))
	weight := ratio * float64(advantage)
	// The objective min(r A, clip(r) A) has no gradient where the clipped term is the smaller one.
	if (advantage > 0 && ratio >= 1+clip) || (advantage <= 0 && ratio <= 1-clip) {
		weight = 0
	}
	gradient := make([]float32, len(logits))
	for i, prob := range probs {
		oneHot := 0.0
		if i == int(action) {
			oneHot = 1
		}
		gradient[i] = float32(weight*(prob-oneHot) + entropyBonus*prob*(math.Log(prob)+entropy))
	}
	return gradient
}

func mean(values []float64) float64 {
	total := 0.0
	for _, value := range values {
		total += value
	}
	return total / float64(len(values))
}
