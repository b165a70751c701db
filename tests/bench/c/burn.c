/* A busy neighbour: computes until it is killed. */
int main(void) {
    for (volatile unsigned long i = 0;; i++) {}
}
