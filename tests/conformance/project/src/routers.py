"""A station that names the task to which a tuple goes.

Storm 2.8 cannot take a direct emit from a stock component: its JSON serializer takes the task for a Long, the parser
made an Integer, and the worker ends. A component on Downspout's wire can do it, and this is all that it takes.
"""

from stations import Witness
from streamparse import Bolt, Stream

from downspout.wire import MultilangComponent


class Router(Witness, MultilangComponent, Bolt):
    """Names the task on one stream, and asks on the other which tasks a tuple went to."""

    outputs = (Stream(["number"], name="named", direct=True), Stream(["number"]))

    def process(self, tup):
        number = tup.values.number
        targets = sorted(int(task) for task, name in self.context["task->component"].items() if name == "addressed")
        target = targets[number % len(targets)]
        told = self.emit([number], stream="named", direct_task=target, need_task_ids=True)
        went = self.emit([number], need_task_ids=True)
        self.note("routed", number=number, target=target, told=told, went=went)
