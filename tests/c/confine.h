/* Owns: what the parts of confine.c have of each other. */
struct view {
    const char *data;           /* what is writable as /var/lib/redis; or NULL */
    const char *library, *as;   /* a file that is seen under another name, as if it were installed there; or NULL */
    const char *program;        /* executable, with /usr/lib and /lib */
    const char *executable;     /* and this, by a drop-in's ExecPaths=; or NULL */
};

/* Gives the process files of its own: they look as the unit asks for it. Needs root. */
void own_view(const struct view *v);
void fail(const char *what);
