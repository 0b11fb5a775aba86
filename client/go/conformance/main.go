// Command conformance is the adapter of this package for Rollserve's conformance kit.
//
// It reads each case as a line of JSON, performs the case's operations by the package's public interface, and writes a
// line with their results, until its standard input ends. docs/conformance.md describes both lines.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	rollserve "github.com/rollserve/rollserve/client/go"
)

// object is a JSON object.
type object map[string]any

// testCase is a line of the kit.
type testCase struct {
	Case       string
	Connect    json.RawMessage
	Operations []json.RawMessage
}

// connection is how the client connects.
type connection struct {
	Target         string
	TimeoutSeconds float64 `json:"timeout_seconds"`
	CA             string
	Token          string
	Compression    []rollserve.Compression
	MaxMessage     int `json:"max_message_bytes"`
}

func main() {
	input, output := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var asked testCase
			if err := json.Unmarshal(line, &asked); err != nil {
				log.Fatal(err)
			}
			answer := run(&asked)
			answer["case"] = asked.Case
			if err := output.Encode(answer); err != nil {
				log.Fatal(err)
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

// run returns the results of a case's operations, each of which is performed whether or not the others fail.
func run(asked *testCase) object {
	c := &client{}
	sampler, err := connect(asked.Connect, func(text string) { c.warnings = append(c.warnings, text) })
	var missing unsupported
	if errors.As(err, &missing) {
		return object{"unsupported": missing.Error()}
	}
	if err == nil {
		defer sampler.Close()
	}
	c.Sampler = sampler
	results := make([]object, len(asked.Operations))
	for i, content := range asked.Operations {
		result, failure := object(nil), err
		if failure == nil {
			result, failure = perform(context.Background(), c, content)
		}
		if failure != nil {
			result = describeError(failure)
		}
		results[i] = result
	}
	return object{"results": results}
}

func connect(content json.RawMessage, warn func(string)) (*rollserve.Sampler, error) {
	var c connection
	if err := decode(content, &c); err != nil {
		return nil, err
	}
	config := rollserve.Config{
		Timeout: time.Duration(c.TimeoutSeconds * float64(time.Second)), CA: c.CA, Token: c.Token,
		MaxMessageBytes: c.MaxMessage, Compression: c.Compression, Warn: warn,
	}
	return rollserve.Connect(c.Target, config)
}

// unsupported is the error of what the kit asks for and this client does not have.
type unsupported string

func (u unsupported) Error() string { return string(u) }

// decode reads a JSON object. Fields that the adapter does not know make it unsupported, so that none is overlooked.
func decode(content json.RawMessage, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(to); err != nil {
		return unsupported(err.Error())
	}
	return nil
}

// lookUp returns the value of a name, which is unsupported if it has none.
func lookUp[T any](field, name string, values map[string]T) (T, error) {
	value, known := values[name]
	if !known {
		return value, unsupported(fmt.Sprintf("%s %q", field, name))
	}
	return value, nil
}
