/* What the C files of this folder share. */

#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#ifndef Py_T_OBJECT_EX /* before Python 3.12 */
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

#define ITEM PyTuple_GET_ITEM

/* How the objects of all types begin: a vectorcall, or NULL, and the objects that they hold, known to the collector. */
#define HEAD(count) PyObject_HEAD vectorcallfunc call; Py_ssize_t parts; PyObject *part[count]
typedef struct { HEAD(1); } Any;
/* Make an object that holds these; NULL with an error. */
void *new_object(PyTypeObject *type, PyObject *const *part, Py_ssize_t count);
/* Add a type of such objects to the module; -1 with an error.  `call`: of those without a vectorcall, or NULL. */
int add_type(PyObject *module, const char *name, size_t size, newfunc make, ternaryfunc call, PyMethodDef *methods);
/* Make strings that live for ever and are the same objects as Python's; -1 with an error. */
int intern(PyObject **strings, const char *const *names, int count);
/* Find the offsets of slots of a class; -1 with an error if it has not all of them. */
int find_slots(PyTypeObject *type, const char *const *names, Py_ssize_t *offsets, int count);

/* The interpreter that records in this thread, borrowed; NULL: none. */
PyObject *recording_of_thread(void);

/* Files that Python has called something of, a bit each, for tools/journeys.py. */
enum { IN_ARENA = 1, IN_LAUNCH = 2, IN_OP = 4, IN_REPLAY = 8, IN_ROWS = 16 };
extern unsigned entered;

/* One per file: add what the file has to the module; -1 with an error. */
int add_arena(PyObject *module);
int add_launch(PyObject *module);
int add_op(PyObject *module);
int add_replay(PyObject *module);
int add_rows(PyObject *module);
