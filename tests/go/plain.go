// Owns: a Go program for the negative control: plain server|client PORT, as c/plain.c.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	at := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "server" {
		l, err := net.Listen("tcp4", at)
		if err != nil {
			os.Exit(3)
		}
		c, err := l.Accept()
		if err != nil {
			os.Exit(4)
		}
		io.Copy(c, c)
		return
	}
	c, err := net.Dial("tcp4", at)
	if err != nil {
		os.Exit(5)
	}
	there := make([]byte, 4000000)
	for i := range there {
		there[i] = byte(i*7 + i/1000)
	}
	go c.Write(there)
	back := make([]byte, len(there))
	if _, err := io.ReadFull(c, back); err != nil {
		os.Exit(6)
	}
	if bytes.Equal(there, back) {
		fmt.Println("whole")
	} else {
		fmt.Println("DIFFERENT")
	}
}
