//go:build !go1.21

package rollserve

import "log"

func defaultWarn(warning string) { log.Print("rollserve: ", warning) }
