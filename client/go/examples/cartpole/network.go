package main

import (
	"fmt"
	"math"
	"math/rand"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// network is a multilayer perceptron with hidden layers of tanh, which handles one input at a time.
type network struct {
	layers     []*layer
	numUpdates int
}

type layer struct {
	inputs, outputs int
	input, output   []float32
	weight, bias    parameter // (outputs, inputs) and (outputs)
}

// parameter has the values of a parameter, the sum of their gradients, and Adam's averages.
type parameter struct{ values, gradient, first, second []float32 }

func newNetwork(sizes []int, random *rand.Rand) *network {
	network := &network{}
	for i, outputs := range sizes[1:] {
		weight := make([]float32, outputs*sizes[i])
		for j := range weight {
			weight[j] = float32(random.NormFloat64() / math.Sqrt(float64(sizes[i])))
		}
		network.add(sizes[i], weight, make([]float32, outputs))
	}
	return network
}

// networkOf returns a network that shares the memory of an agent's parameters.
func networkOf(parameters rollserve.Parameters) (*network, error) {
	network := &network{}
	for i := 0; ; i++ {
		array, known := parameters[fmt.Sprintf("%d/weight", i)]
		if !known {
			return network, nil
		}
		weight, err := rollserve.Values[float32](array)
		if err != nil {
			return nil, err
		}
		bias, err := rollserve.Values[float32](parameters[fmt.Sprintf("%d/bias", i)])
		if err != nil {
			return nil, err
		}
		network.add(array.RowSize(), weight, bias)
	}
}

func (n *network) add(inputs int, weight, bias []float32) {
	n.layers = append(n.layers, &layer{
		inputs: inputs, outputs: len(bias), output: make([]float32, len(bias)),
		weight: newParameter(weight), bias: newParameter(bias),
	})
}

func newParameter(values []float32) parameter {
	size := len(values)
	return parameter{values, make([]float32, size), make([]float32, size), make([]float32, size)}
}

// forward returns the output for an input; it is valid until the next call.
func (n *network) forward(input []float32) []float32 {
	for i, layer := range n.layers {
		layer.input = input
		for j := range layer.output {
			sum := layer.bias.values[j]
			for k, weight := range layer.weight.values[j*layer.inputs : (j+1)*layer.inputs] {
				sum += weight * input[k]
			}
			if i < len(n.layers)-1 {
				sum = float32(math.Tanh(float64(sum)))
			}
			layer.output[j] = sum
		}
		input = layer.output
	}
	return input
}

// backward adds the gradients of the parameters, from the gradient of the last output of forward.
func (n *network) backward(gradient []float32) {
	for i := len(n.layers) - 1; i >= 0; i-- {
		layer := n.layers[i]
		before := make([]float32, layer.inputs)
		for j, g := range gradient {
			layer.bias.gradient[j] += g
			weights, sums := layer.weight.values[j*layer.inputs:], layer.weight.gradient[j*layer.inputs:]
			for k, x := range layer.input {
				sums[k] += g * x
				before[k] += g * weights[k]
			}
		}
		for k, x := range layer.input { // the output of the layer before, by tanh, whose derivative is 1 - tanh²
			before[k] *= 1 - x*x
		}
		gradient = before
	}
}

// improve makes a step of Adam (https://arxiv.org/abs/1412.6980) with the mean of count gradients, whose norm is
// limited to 0.5, and sets the gradients to 0.
func (n *network) improve(rate float64, count int) {
	n.numUpdates++
	squares := 0.0
	for _, layer := range n.layers {
		for _, gradient := range [][]float32{layer.weight.gradient, layer.bias.gradient} {
			for _, g := range gradient {
				squares += float64(g) * float64(g)
			}
		}
	}
	scale := math.Min(1, 0.5*float64(count)/(math.Sqrt(squares)+1e-8)) / float64(count)
	firstRate := rate / (1 - math.Pow(0.9, float64(n.numUpdates)))
	secondScale := 1 / (1 - math.Pow(0.999, float64(n.numUpdates)))
	for _, layer := range n.layers {
		for _, p := range []parameter{layer.weight, layer.bias} {
			for i := range p.values {
				gradient := float32(scale) * p.gradient[i]
				p.gradient[i] = 0
				p.first[i] += 0.1 * (gradient - p.first[i])
				p.second[i] += 0.001 * (gradient*gradient - p.second[i])
				root := math.Sqrt(float64(p.second[i]) * secondScale)
				p.values[i] -= float32(firstRate * float64(p.first[i]) / (root + 1e-5))
			}
		}
	}
}
